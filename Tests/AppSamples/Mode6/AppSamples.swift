import Dispatch
import Foundation
import SluiceStorage

/// Calls in the forms in which apps write them for the Storage SDK for Apple platforms: only the import and the set-up differ. This
/// file is compiled in the language modes 5 and 6.
public struct AppSamples {
    let storage: Storage
    /// A file of some hundred kilobytes.
    let localFile: URL
    /// Where a download is written.
    let localURL: URL
    /// The steps that have completed.
    let steps: Steps

    public init(storage: Storage, localFile: URL, localURL: URL) {
        self.storage = storage
        self.localFile = localFile
        self.localURL = localURL
        steps = Steps()
    }

    /// Runs everything, and returns the steps that completed, sorted.
    public func run() async -> [String] {
        references()
        await uploads()
        await uploadsWithAsync()
        await managedUpload()
        await metadata()
        await lists()
        await downloads()
        await errors()
        return steps.names.sorted()
    }

    // MARK: References

    private func references() {
        let storageRef = storage.reference()
        let imagesRef: StorageReference = storageRef.child("images")
        var spaceRef = storageRef.child("images/space.jpg")
        let parent = spaceRef.parent()
        let root = spaceRef.root()
        let earthRef = spaceRef.parent()?.child("earth.jpg")
        let nilRef = spaceRef.root().parent()
        spaceRef = imagesRef.child("space.jpg")
        let path: String = spaceRef.fullPath
        let name: String = spaceRef.name
        let bucket: String = spaceRef.bucket
        // A reference from a URL, without try.
        let gsReference = storage.reference(forURL: "gs://\(bucket)/images/stars.jpg")
        let httpsReference = storage.reference(
            forURL: "https://firebasestorage.googleapis.com/b/\(bucket)/o/images%2Fstars.jpg")
        let pathReference = storage.reference(withPath: "images/stars.jpg")
        let parsed = try? storage.reference(for: URL(string: "gs://\(bucket)/images/stars.jpg")!)
        if parent == imagesRef, root == storageRef, nilRef == nil, earthRef?.name == "earth.jpg",
            path == "images/space.jpg", name == "space.jpg", gsReference == pathReference,
            httpsReference.fullPath == pathReference.fullPath, parsed == pathReference,
            "\(pathReference)" == "gs://\(bucket)/images/stars.jpg",
            pathReference.storage === storage
        {
            steps.add("references")
        }
    }

    // MARK: Uploads

    private func uploads() async {
        let data = Data("rivers".utf8)
        let riversRef = storage.reference().child("images/rivers.jpg")
        await waiting { done in
            let uploadTask = riversRef.putData(data, metadata: nil) { (metadata, error) in
                guard let metadata = metadata else { return done() }
                let size = metadata.size
                riversRef.downloadURL { (url, error) in
                    guard let downloadURL = url else { return done() }
                    if size == 6, !downloadURL.absoluteString.isEmpty { steps.add("putData") }
                    done()
                }
            }
            _ = uploadTask.snapshot.status
        }
        await waiting { done in
            riversRef.putFile(from: localFile, metadata: nil) { metadata, error in
                guard let metadata = metadata else { return done() }
                if let name = metadata.name, metadata.path != nil, name == "rivers.jpg" {
                    steps.add("putFile")
                }
                done()
            }
        }
        await waiting { done in
            // A completion that changes what it captures.
            var attempts = 0
            riversRef.putData(data) { result in
                attempts += 1
                switch result {
                case .success(let metadata): if metadata.size == 6 { steps.add("result") }
                case .failure(let error): print(error.localizedDescription)
                }
                if attempts == 1 { done() }
            }
        }
        riversRef.putData(data)
        riversRef.putFile(from: localFile)
        riversRef.putData(data, metadata: nil, completion: nil)
    }

    private func uploadsWithAsync() async {
        let metadata = StorageMetadata()
        metadata.contentType = "image/jpeg"
        let mountainsRef = storage.reference().child("images/mountains.jpg")
        do {
            let stored = try await mountainsRef.putFileAsync(from: localFile, metadata: metadata) {
                progress in
                if let progress = progress { _ = progress.fractionCompleted }
            }
            let bytes = try await mountainsRef.putDataAsync(Data("m".utf8), metadata: metadata)
            let url = try await mountainsRef.downloadURL()
            if stored.contentType == "image/jpeg", bytes.size == 1, url.scheme == "http" {
                steps.add("async uploads")
            }
        } catch {
            print(error.localizedDescription)
        }
    }

    private func managedUpload() async {
        let storageRef = storage.reference()
        let metadata = StorageMetadata()
        metadata.contentType = "image/jpeg"
        await waiting { done in
            var percents: [Double] = []
            let uploadTask = storageRef.child("images/managed.jpg").putFile(
                from: localFile, metadata: metadata)
            // The upload has read it.
            metadata.contentType = "text/plain"
            uploadTask.observe(.resume) { snapshot in steps.add("resume") }
            uploadTask.observe(.pause) { snapshot in
                steps.add("pause")
                uploadTask.resume()
            }
            let observer = uploadTask.observe(.progress) { snapshot in
                let percentComplete =
                    100.0 * Double(snapshot.progress!.completedUnitCount)
                    / Double(snapshot.progress!.totalUnitCount)
                percents.append(percentComplete)
            }
            let removed = uploadTask.observe(.progress) { _ in steps.add("removed observer") }
            uploadTask.removeObserver(withHandle: removed)
            uploadTask.observe(.success) { snapshot in
                if snapshot.metadata?.contentType == "image/jpeg", percents.last == 100 {
                    steps.add("managed upload")
                }
                snapshot.task.removeAllObservers()
                done()
            }
            uploadTask.observe(.failure) { snapshot in
                if let error = snapshot.error as? NSError { print(error.code) }
                done()
            }
            uploadTask.pause()
            _ = observer
        }
        await waiting { done in
            let uploadTask = storageRef.child("images/cancelled.jpg").putFile(from: localFile)
            uploadTask.observe(.failure) { snapshot in
                if let error = snapshot.error as? NSError {
                    switch StorageErrorCode(rawValue: error.code)! {
                    case .objectNotFound: break
                    case .unauthorized: break
                    case .cancelled: steps.add("cancel")
                    case .unknown: break
                    default: break
                    }
                }
                done()
            }
            uploadTask.cancel()
            uploadTask.removeAllObservers(for: .progress)
        }
    }

    // MARK: Metadata

    private func metadata() async {
        let forestRef = storage.reference().child("images/forest.jpg")
        let newMetadata = StorageMetadata()
        newMetadata.cacheControl = "public,max-age=300"
        newMetadata.contentType = "image/jpeg"
        newMetadata.customMetadata = ["location": "Yosemite, CA, USA", "activity": "Hiking"]
        do {
            _ = try await forestRef.putDataAsync(Data("forest".utf8))
            let updated = try await forestRef.updateMetadata(newMetadata)
            if updated.customMetadata?["activity"] == "Hiking" { steps.add("updateMetadata") }
        } catch {
            print(error)
        }
        await waiting { done in
            forestRef.getMetadata { metadata, error in
                if let error = error {
                    print(error)
                } else if metadata?.cacheControl == "public,max-age=300",
                    metadata?.timeCreated != nil, metadata?.md5Hash != nil
                {
                    steps.add("getMetadata")
                }
                done()
            }
        }
        newMetadata.contentType = nil
        await waiting { done in
            forestRef.updateMetadata(newMetadata) { metadata, error in
                if error == nil, metadata?.contentType == nil { steps.add("removed metadata") }
                done()
            }
        }
        await waiting { done in
            forestRef.delete { error in
                if error == nil { steps.add("delete") }
                done()
            }
        }
    }

    // MARK: Lists

    private func lists() async {
        let storageReference = storage.reference().child("files/uid")
        for name in ["a", "b", "sub/c"] {
            _ = try? await storageReference.child(name).putDataAsync(Data(name.utf8))
        }
        await waiting { done in
            storageReference.listAll { (result, error) in
                if let error = error {
                    print(error)
                    return done()
                }
                for prefix in result!.prefixes where prefix.name == "sub" { steps.add("prefix") }
                for item in result!.items where item.name == "b" { steps.add("item") }
                done()
            }
        }
        do {
            var pageToken: String?
            var names: [String] = []
            repeat {
                let listResult: StorageListResult
                if let pageToken {
                    listResult = try await storageReference.list(
                        maxResults: 1, pageToken: pageToken)
                } else {
                    listResult = try await storageReference.list(maxResults: 1)
                }
                names += listResult.prefixes.map(\.name) + listResult.items.map(\.name)
                pageToken = listResult.pageToken
            } while pageToken != nil
            if names.sorted() == ["a", "b", "sub"] { steps.add("pages") }
        } catch {
            print(error)
        }
    }

    // MARK: Downloads

    private func downloads() async {
        let islandRef = storage.reference().child("images/mountains.jpg")
        await waiting { done in
            islandRef.getData(maxSize: 1 * 1024 * 1024) { data, error in
                if let error = error {
                    print(error)
                } else if data?.count == 1 {
                    steps.add("getData")
                }
                done()
            }
        }
        await waiting { done in
            let downloadTask = islandRef.write(toFile: localURL) { url, error in
                if let url = url, (try? Data(contentsOf: url)) == Data("m".utf8) {
                    steps.add("write")
                }
                done()
            }
            downloadTask.observe(.progress) { snapshot in _ = snapshot.progress?.fractionCompleted }
            downloadTask.pause()
            downloadTask.resume()
        }
        do {
            let data = try await islandRef.data(maxSize: 1024)
            let url = try await islandRef.writeAsync(toFile: localURL) { progress in
                _ = progress?.completedUnitCount
            }
            if data.count == 1, url == localURL { steps.add("async downloads") }
        } catch {
            print(error)
        }
        let screen = await Screen(islandRef)
        await screen.show()
        if await screen.title == "1 byte" { steps.add("main actor") }
    }

    // MARK: Errors

    private func errors() async {
        let missing = storage.reference().child("images/missing.jpg")
        do {
            _ = try await missing.getMetadata()
        } catch let error as NSError {
            if error.domain == StorageErrorDomain,
                error.code == StorageErrorCode.objectNotFound.rawValue
            {
                steps.add("NSError")
            }
        }
        await waiting { done in
            missing.getData(maxSize: 1) { data, error in
                let code = StorageErrorCode(rawValue: (error! as NSError).code)
                if data == nil, code == .objectNotFound { steps.add("completion's NSError") }
                done()
            }
        }
        let wrong = storage.reference(forURL: "gs://another-bucket/images/stars.jpg")
        await waiting { done in
            wrong.child("a").delete { error in
                if (error as NSError?)?.code == StorageErrorCode.bucketMismatch.rawValue {
                    steps.add("bucketMismatch")
                }
                done()
            }
        }
        await waiting { done in
            let task = storage.reference(forURL: "no reference").putData(Data())
            task.observe(.failure) { snapshot in
                if let error = snapshot.error as? NSError,
                    error.code == StorageErrorCode.pathError.rawValue
                {
                    steps.add("pathError")
                }
                done()
            }
        }
    }

    /// Waits until `body` has called its argument.
    private func waiting(_ body: (@escaping @Sendable () -> Void) -> Void) async {
        await withCheckedContinuation { continuation in
            body { continuation.resume() }
        }
    }
}

/// A view's state, as an app keeps it on the main actor.
@MainActor private final class Screen {
    var title = ""
    private let reference: StorageReference

    init(_ reference: StorageReference) { self.reference = reference }

    func show() async {
        let usual = reference.storage.callbackQueue
        reference.storage.callbackQueue = .main
        await withCheckedContinuation { continuation in
            reference.getData(maxSize: 1024) { data, error in
                if let data = data { self.title = "\(data.count) byte" }
                continuation.resume()
            }
        }
        reference.storage.callbackQueue = usual
    }
}

/// The names of steps.
///
/// Safety: behind a lock.
final class Steps: @unchecked Sendable {
    private let lock = NSLock()
    private var found: Set<String> = []

    func add(_ name: String) { lock.withLock { _ = found.insert(name) } }

    var names: [String] { lock.withLock { Array(found) } }
}
