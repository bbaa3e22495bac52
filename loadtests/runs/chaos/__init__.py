"""Every part of the stack killed, frozen and cut off, under load, and every request followed to its end.

deck -> havoc -> stand          what is done to which part, and when
questions -> client -> checker  what became of each request, and whether anything that happened accounts for it
"""
