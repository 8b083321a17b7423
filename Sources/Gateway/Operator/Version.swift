/// This program's version, as `--version`, `/version` and the build metric tell it.
public let sluiceVersion = "0.1.0"
