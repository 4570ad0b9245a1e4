"""What small classifiers read of a request, and the endpoint that answers with their labels."""
