"""The live page: its files, the stream of pictures that moves it, and the guard before what it may change.

It knows no service. What a picture shows is its caller's: a function that makes one, asked while somebody looks.
"""
