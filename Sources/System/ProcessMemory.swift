import CLinux

/// The memory of this process.
public enum ProcessMemory {
    /// Gives back the memory of the program's code, for example of what was used only to start. Code that runs again
    /// is provided again, page by page, from the file.
    public static func releaseCode() { sluice_release_code() }
}
