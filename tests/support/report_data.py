"""Read the data of a report."""

import base64
import gzip
import json
import re


def data_of(path):
    """Return the data of a report, unpacked as its page does."""
    packed = re.search(
        rb'<script id="data" type="application/octet-stream">([A-Za-z0-9+/=]*)</script>', path.read_bytes()
    )
    return json.loads(gzip.decompress(base64.b64decode(packed[1])))
