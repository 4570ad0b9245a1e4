"""Jobs, batches and files in PostgreSQL 12 or later, shared by several machines. Needs the extra `postgres`.

    address      the settings' URL
    connections  a small pool with time limits, and errors without secrets
    schema       the tables, and their versions
    groups       concurrent calls of one kind share a transaction
    queue        submit, claim, extend, release
    ends         everything that ends a job: its row leaves the queue, its result appears, its batch counts it
    records      look-ups, lists and counts
    aged_values  counts that take long
    streams      the events of jobs
    batches      batches and their coordinators
    files        the records of files, and their contents in parts
    webhooks     ends that webhooks report
    wakeups      LISTEN and NOTIFY
    store        all of them as one store

The queue is a table of its own that contains only jobs that have not ended, because a table that is updated often is slow
when it is large: a job is inserted there, updated by its claims and deleted at its end. The tables of requests and results
are only ever inserted into, until they expire.
"""
