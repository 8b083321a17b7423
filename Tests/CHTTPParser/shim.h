// The parser that HTTP/1.1 is checked against; only tests link it.
#ifndef SLUICE_CHTTPPARSER_SHIM_H
#define SLUICE_CHTTPPARSER_SHIM_H
#include <http_parser.h>
#endif
