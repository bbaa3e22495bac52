"""A router of several processes, which are replaced one after the other under load: is a request lost?"""
