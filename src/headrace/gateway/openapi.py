def openapi_body() -> bytes:
    return b"{}"
