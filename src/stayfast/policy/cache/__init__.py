"""Which answers may be given again, to which questions, and what is thrown out when there is no room."""
