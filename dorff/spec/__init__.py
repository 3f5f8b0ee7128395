"""The types of a job: what JOB.yaml may say, read from a file or built in Python."""
