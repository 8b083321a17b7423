import Foundation
import Gateway
import Testing
import Wire
import Yams

@testable import Configuration

/// What `deploy/` holds, checked as far as a machine without a cluster and without a container engine can.
@Suite struct DeployTests {
    static let root = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
        .deletingLastPathComponent().deletingLastPathComponent()

    private func text(_ path: String) throws -> String {
        try String(contentsOf: DeployTests.root.appending(path: path), encoding: .utf8)
    }

    private func manifest(_ kind: String, in file: String = "sidecar") throws -> [String: Any] {
        let all = try Yams.load_all(yaml: text("deploy/kubernetes/\(file).yaml"))
            .map { try #require($0 as? [String: Any]) }
        return try #require(all.first { $0["kind"] as? String == kind })
    }

    private func pod() throws -> [String: Any] {
        let template = try value(manifest("Deployment"), "spec", "template", "spec")
        return try #require(template as? [String: Any])
    }

    private func sidecar() throws -> [String: Any] {
        let containers = try #require(try pod()["initContainers"] as? [[String: Any]])
        return try #require(containers.first { $0["name"] as? String == "sluice" })
    }

    private func value(_ start: Any, _ path: String...) throws -> Any {
        try path.reduce(start) { try #require(($0 as? [String: Any])?[$1], "\(path): \($1)") }
    }

    /// The configuration in the ConfigMap with the sidecar's environment, as the container reads them.
    private func configurationOfThePod() throws -> Configuration {
        let yaml = try #require(try value(manifest("ConfigMap"), "data", "sluice.yaml") as? String)
        let file = FileManager.default.temporaryDirectory.appending(path: "\(UUID()).yaml")
        try yaml.write(to: file, atomically: true, encoding: .utf8)
        defer { try? FileManager.default.removeItem(at: file) }
        let environment = try #require(try sidecar()["env"] as? [[String: String]])
        let pairs = try environment.map {
            (BytewiseString(try #require($0["name"])), try #require($0["value"]))
        }
        return try Configuration.load(
            file: file.path, environment: Dictionary(uniqueKeysWithValues: pairs))
    }

    @Test func thePodServesItselfAndShowsTheOperatorToTheKubelet() throws {
        let configuration = try configurationOfThePod()
        #expect(configuration.http == "127.0.0.1:8080")
        #expect(configuration.operatorAddress == "0.0.0.0:9090")
        let ports = try #require(try sidecar()["ports"] as? [[String: Any]])
        #expect(ports.map { $0["containerPort"] as? Int } == [9090])
        #expect(ports[0]["name"] as? String == "operator")
        for (probe, path) in [
            ("startupProbe", "/readyz"), ("readinessProbe", "/readyz"), ("livenessProbe", "/livez"),
        ] {
            #expect(try value(sidecar(), probe, "httpGet", "path") as? String == path)
            #expect(try value(sidecar(), probe, "httpGet", "port") as? String == "operator")
            // A question to readiness waits for its checks at most this long.
            let timeout = try #require(try value(sidecar(), probe, "timeoutSeconds") as? Int)
            #expect(UInt64(timeout) * 1_000_000_000 > Health().timeout)
        }
    }

    @Test func thePodGivesTheDrainItsTime() throws {
        let grace = try #require(try pod()["terminationGracePeriodSeconds"] as? Int)
        #expect(UInt64(grace) * 1_000_000_000 > (try configurationOfThePod().limits.drainTimeout))
        #expect(try sidecar()["restartPolicy"] as? String == "Always")
    }

    @Test func thePodHasNoMoreRightsThanItNeeds() throws {
        let pod = try pod()
        #expect(pod["automountServiceAccountToken"] as? Bool == false)
        #expect(pod["enableServiceLinks"] as? Bool == false)
        #expect(try value(pod, "securityContext", "runAsNonRoot") as? Bool == true)
        #expect(try value(pod, "securityContext", "runAsUser") as? Int == 65532)
        #expect(
            try value(pod, "securityContext", "seccompProfile", "type") as? String
                == "RuntimeDefault")
        let own = try value(sidecar(), "securityContext")
        #expect(try value(own, "allowPrivilegeEscalation") as? Bool == false)
        #expect(try value(own, "readOnlyRootFilesystem") as? Bool == true)
        #expect(try value(own, "capabilities", "drop") as? [String] == ["ALL"])
        #expect(try value(sidecar(), "resources", "limits", "memory") as? String == "256Mi")
    }

    @Test func everyMountHasAVolumeAndBucketsAreOnOne() throws {
        let volumes = try #require(try pod()["volumes"] as? [[String: Any]])
        let mounts = try #require(try sidecar()["volumeMounts"] as? [[String: Any]])
        let names = Set(volumes.compactMap { $0["name"] as? String })
        #expect(mounts.allSatisfy { names.contains($0["name"] as? String ?? "") })
        let writable = mounts.filter { $0["readOnly"] as? Bool != true }
            .compactMap { $0["mountPath"] as? String }
        for bucket in try configurationOfThePod().buckets {
            let path = try #require(bucket.directory)
            #expect(writable.contains { path.hasPrefix($0 + "/") })
        }
        let claim = try value(manifest("PersistentVolumeClaim"), "metadata", "name") as? String
        let claimed = volumes.compactMap { $0["persistentVolumeClaim"] as? [String: String] }
        #expect(claimed.map { $0["claimName"] } == [claim])
    }

    /// The token that the caller's pod gets is one that the example takes.
    @Test func theCallersTokenIsForTheGateway() throws {
        let deployment = try manifest("Deployment", in: "caller")
        let pod = try value(deployment, "spec", "template", "spec")
        let account = try value(manifest("ServiceAccount", in: "caller"), "metadata", "name")
        #expect(try value(pod, "serviceAccountName") as? String == account as? String)
        let containers = try #require(try value(pod, "containers") as? [[String: Any]])
        let mounts = try #require(containers[0]["volumeMounts"] as? [[String: Any]])
        let volumes = try #require(try value(pod, "volumes") as? [[String: Any]])
        #expect(mounts.map { $0["name"] as? String } == volumes.map { $0["name"] as? String })
        let sources = try value(volumes[0], "projected", "sources") as? [[String: Any]]
        let token = try value(try #require(sources?.first), "serviceAccountToken")
        let file = DeployTests.root.appending(path: "config/callers.yaml").path
        let issuers = try Configuration.load(file: file).issuers
        let audience = try value(token, "audience") as? String
        #expect(issuers.first { $0.name == "cluster" }?.kubernetes.audience == audience)
        let place = try #require(mounts[0]["mountPath"] as? String)
        let environment = try #require(containers[0]["env"] as? [[String: String]])
        let path = environment.first { $0["name"] == "STORAGE_TOKEN_FILE" }?["value"]
        #expect(path == "\(place)/\(try value(token, "path"))")
    }

    @Test func theServiceAndTheImageHaveAValidConfiguration() throws {
        let file = DeployTests.root.appending(path: "deploy/sluice.yaml").path
        let configuration = try Configuration.load(file: file)
        #expect(configuration.buckets.map(\.directory) == ["/var/lib/sluice/photos"])
        // The image listens on all addresses.
        #expect(configuration.rules?.hasSuffix("/deploy/storage.rules") == true)
        let start = "serve --config /etc/sluice/sluice.yaml"
        #expect(
            try text("deploy/sluice.service").contains("ExecStart=/usr/local/bin/sluice \(start)\n")
        )
        let image = try text("deploy/Dockerfile")
        #expect(image.contains("deploy/sluice.yaml /out/etc/sluice/sluice.yaml"))
        #expect(image.contains("deploy/storage.rules /out/etc/sluice/storage.rules"))
        var environment: [BytewiseString: String] = [:]
        for match in image.matches(of: /(SLUICE_[A-Z_]+)=(\S+)/) {
            environment[String(match.1)] = String(match.2)
        }
        #expect(environment.count == 2)
        let inside = try Configuration.load(file: file, environment: environment)
        #expect(inside.http == "0.0.0.0:8080" && inside.operatorAddress == "0.0.0.0:9090")
    }

    @Test func theImageIsGivenAllThatItIsBuiltFrom() throws {
        let given = try text(".dockerignore").split(separator: "\n")
            .filter { $0.hasPrefix("!") }.map { $0.dropFirst() }
        let files = try text("deploy/Dockerfile").matches(of: /install .*\s(deploy\/\S+|LICENSE)\s/)
            .map(\.1)
        // Only `make fuzz` has the targets below Fuzz.
        let targets = try text("Package.swift").matches(of: /path: "([^"]+)"/).map(\.1)
            .filter { !$0.hasPrefix("Fuzz/") }
        #expect(files.count == 3 && targets.count > 5)
        for path in files + targets {
            #expect(given.contains { path == $0 || path.hasPrefix("\($0)/") }, "\(path)")
        }
    }

    @Test func theServiceStopsLaterThanTheDrain() throws {
        let unit = try text("deploy/sluice.service")
        let match = try #require(unit.firstMatch(of: /\nTimeoutStopSec=(\d+)\n/))
        let seconds = try #require(UInt64(match.1))
        let file = DeployTests.root.appending(path: "deploy/sluice.yaml").path
        let drain = try Configuration.load(file: file).limits.drainTimeout
        #expect(seconds * 1_000_000_000 > drain)
    }

    @Test func theImageInstallsWhatThePackageNeeds() throws {
        let image = try text("deploy/Dockerfile")
        // The system libraries below Sources; those below Tests are not in the image.
        let libraries = try text("Package.swift")
            .matches(of: /\.systemLibrary\(\s*name: "(\w+)"[^(]*\.apt\(\["([^"]+)"\]\)/)
            .filter {
                let path = DeployTests.root.appending(path: "Sources/\($0.1)").path
                return FileManager.default.fileExists(atPath: path)
            }
        #expect(libraries.count == 6)
        for library in libraries {
            #expect(image.contains(" \(library.2) "), "\(library.2) is not installed")
        }
        #expect(image.contains("\nUSER 65532:65532\n"))
        #expect(image.contains("\nSTOPSIGNAL SIGTERM\n"))
    }
}
