"""F2: the embedded model: a supervised llama.cpp child process, and the small model that comes with the package."""
