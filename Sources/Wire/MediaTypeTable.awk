# Makes MediaTypeTable.swift from the table that Debian's package media-types (public domain) maintains:
#     awk -f MediaTypeTable.awk /etc/mime.types > MediaTypeTable.swift
# The first type that claims an extension keeps it. The claims below precede the file's: types that were registered
# later, and extensions whose meaning has changed.
function claim(type, extension) {
    if (extension in owner || extension !~ /^[a-z0-9+_-]+$/) return
    owner[extension] = type
    if (!(type in list)) order[++types] = type
    list[type] = list[type] (list[type] == "" ? "" : ",") extension
}
BEGIN {
    claim("application/yaml", "yaml"); claim("application/yaml", "yml")
    claim("application/vnd.apache.parquet", "parquet")
    claim("application/vnd.apache.arrow.file", "arrow")
    claim("application/x-ipynb+json", "ipynb")
    claim("application/jsonl", "jsonl"); claim("application/x-ndjson", "ndjson")
    claim("text/x-rust", "rs"); claim("text/x-go", "go"); claim("text/x-swift", "swift")
    claim("video/mp2t", "ts"); claim("image/heic", "heic"); claim("image/jxl", "jxl")
    claim("application/octet-stream", "bin")
}
/^#/ || NF < 2 { next }
{ for (i = 2; i <= NF; i++) claim($1, tolower($i)) }
END {
    print "// Made by MediaTypeTable.awk from the media-types package of Debian; do not edit."
    print ""
    print "/// Media types with their file extensions: `type:extension,extension`, separated by white space."
    print "let mediaTypeTable: StaticString = \"\"\""
    line = "   "
    for (i = 1; i <= types; i++) {
        word = order[i] ":" list[order[i]]
        if (length(line) + 1 + length(word) > 100 && line != "   ") { print line; line = "   " }
        line = line " " word
    }
    print line
    print "    \"\"\""
}
