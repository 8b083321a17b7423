import Buckets

