"""The demos: each a story played with real processes on a folder of its own, ended by a proof in numbers."""
