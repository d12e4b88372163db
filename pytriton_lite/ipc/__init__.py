"""What crosses between the engine and a worker: messages, the channel, shared memory. Imports core and numpy alone."""
