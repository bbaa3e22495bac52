"""Two routers behind HAProxy, restarted in turn under load: is a request lost?"""
