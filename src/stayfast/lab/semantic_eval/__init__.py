"""What a semantic cache would do with one's own questions: hit rate against wrong answers, before anything is turned on."""
