"""`stayfast plan`: what a change of settings, prompts or machines would bring, from a log of the user's own traffic."""
