import Identity
import SecurityRules
import Wire

/// An identified caller, saved for a later decision. The rules then see the same `request.auth`.
struct SavedCaller {
    let principal: Principal
    let auth: SecurityRules.Caller

    /// Saves a principal; nil for an anonymous caller.
    init?(_ caller: Caller) {
        guard let principal = caller.principal, let auth = caller.auth else { return nil }
        self.principal = principal
        self.auth = auth
    }

    var json: [UInt8] {
        var json = JSONWriter(reserving: 512)
        json.beginObject()
        json.member("kind", principal.kind.rawValue)
        json.member("uid", principal.uid)
        json.member("source", principal.source)
        json.member("group", principal.group)
        json.member("expires", String(principal.expires))
        json.member(key: "token", json: auth.tokenJSON)
        json.endObject()
        return json.bytes
    }

    /// Parses the value of ``json`` at an index of a document; nil for anything else.
    init?(_ document: JSONDocument, at index: Int) {
        guard document.kind(index) == .object else { return nil }
        var texts: [BytewiseString: String] = [:]
        var token: SlicedValue?
        for name in document.children(of: index) {
            switch document.kind(name + 1) {
            case .string: texts[BytewiseString(document.text(name))] = document.text(name + 1)
            case .object: token = SlicedValue(document, name + 1)
            default: return nil
            }
        }
        guard let kind = texts["kind"].flatMap(Principal.Kind.init), let uid = texts["uid"],
            let source = texts["source"], let group = texts["group"],
            let expires = texts["expires"].flatMap({ Int64($0) }), let token
        else { return nil }
        principal = Principal(
            kind: kind, uid: uid, source: source, group: group, expires: expires)
        auth = SecurityRules.Caller(uid: uid, token: token)
    }
}

extension Principal {
    /// Identifies the caller by its kind, issuer and uid.
    var identity: [UInt8] { Array(kind.rawValue.utf8) + [0] + source.utf8 + [0] + uid.utf8 }
}
