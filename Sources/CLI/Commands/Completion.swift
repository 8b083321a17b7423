import ArgumentParser
import Wire

/// `sluice completion`: prints the completion script of a shell.
struct Completion: ParsableCommand {
    static let configuration = CommandConfiguration(
        abstract: "Print the completion script of a shell.",
        discussion: """
            EXAMPLES:
              sluice completion bash > /etc/bash_completion.d/sluice
              sluice completion zsh > /usr/local/share/zsh/site-functions/_sluice
              sluice completion fish > ~/.config/fish/completions/sluice.fish
            """)

    enum Shell: String, ExpressibleByArgument, CaseIterable {
        case bash
        case zsh
        case fish
    }

    @Argument(help: "bash, zsh or fish.")
    var shell: Shell

    func run() {
        let script =
            switch shell {
            case .bash: Sluice.completionScript(for: .bash)
            case .zsh: Sluice.completionScript(for: .zsh)
            case .fish: Sluice.completionScript(for: .fish)
            }
        print(script)
    }
}
