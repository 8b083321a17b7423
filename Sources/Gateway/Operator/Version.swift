/// The version of the program, for `--version`, `/version` and the build metric.
public let sluiceVersion = "0.1.0"
