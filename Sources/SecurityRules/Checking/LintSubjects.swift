/// What an expression refers to, through let bindings, parameters and functions.
enum Subject: Equatable {
    /// Anything else.
    case other
    case request, method, path
    /// `request.path[i]`
    case segment(Int64)
    case auth, uid, token
    /// A claim of the token.
    case claim(Text)
    /// `request.auth.token.get(claim, default)`
    case claimOrDefault(Text)
    /// `request.auth.token.firebase`
    case firebase
    /// A property of `request.auth.token.firebase`.
    case firebaseProperty(Text)
    /// `resource` or `request.resource`
    case object(Record)
    /// The custom metadata of an object.
    case metadata(Record)
    /// An entry of the custom metadata.
    case entry(Record, Text)

    /// The expression that it usually is written as.
    var text: String {
        switch self {
        case .other: "this"
        case .request: "request"
        case .method: "request.method"
        case .path: "request.path"
        case .segment(let index): "request.path[\(index)]"
        case .auth: "request.auth"
        case .uid: "request.auth.uid"
        case .token: "request.auth.token"
        case .claim(let name), .claimOrDefault(let name): "request.auth.token.\(name.string)"
        case .firebase: "request.auth.token.firebase"
        case .firebaseProperty(let name): "request.auth.token.firebase.\(name.string)"
        case .object(let record): record == .incoming ? "request.resource" : "resource"
        case .metadata(let record): "\(Subject.object(record).text).metadata"
        case .entry(let record, let name): "\(Subject.metadata(record).text).\(name.string)"
        }
    }

    /// The subject of a property.
    func property(_ name: Text, _ code: FieldCode) -> Subject {
        switch self {
        case .request:
            switch code.request {
            case .auth: .auth
            case .method: .method
            case .path: .path
            case .resource: .object(.incoming)
            case .time, .params, nil: .other
            }
        case .auth: name == "uid" ? .uid : name == "token" ? .token : .other
        case .token: name == "firebase" ? .firebase : .claim(name)
        case .firebase: .firebaseProperty(name)
        case .object(let record): code.object == .metadata ? .metadata(record) : .other
        case .metadata(let record): .entry(record, name)
        default: .other
        }
    }
}

extension Lints {
    /// Resolves the results of functions, then their parameters from all calls, then results that depend on parameters.
    mutating func resolveSubjects() {
        for body in calleesFirst { resolveSubjects(bodies[body]) }
        for body in calleesFirst.reversed() {
            resolveSubjects(bodies[body])
            passArguments(bodies[body])
        }
        for body in calleesFirst { resolveSubjects(bodies[body]) }
    }

    private mutating func resolveSubjects(_ body: Body) {
        for node in body.nodes { subjects[node] = subject(node, in: body) }
    }

    private mutating func passArguments(_ body: Body) {
        for node in body.nodes {
            guard case .userCall(let function, let list) = code.operations[node] else { continue }
            for (index, argument) in operands(list).enumerated() {
                let subject = subjects[Int(argument)]
                let known = parameters[Int(function)][index]
                parameters[Int(function)][index] = known == nil || known == subject ? subject : .other
            }
        }
    }

    private func subject(_ node: Int, in body: Body) -> Subject {
        switch code.operations[node] {
        case .record(.request): return .request
        case .record(let record): return .object(record)
        case .member(let object, let name, let field):
            return subjects[Int(object)].property(code.names[Int(name)], field)
        case .index(let object, let key):
            if case .path = subjects[Int(object)], case .int(let index)? = code.constantValue(key) {
                return .segment(index)
            }
            guard let name = string(key) else { return .other }
            return subjects[Int(object)].property(name, FieldCode(name))
        case .local(let local):
            if let binding = binding(local, in: body) { return subjects[Int(binding)] }
            return body.function < 0 ? .other : parameters[body.function][Int(local)] ?? .other
        case .userCall(let function, _): return subjects[Int(code.functionCodes[Int(function)].result)]
        case .call(.debug, let list): return operands(list).first.map { subjects[Int($0)] } ?? .other
        case .method(let name, let list): return method(code.names[Int(name)], operands(list))
        default: return .other
        }
    }

    private func method(_ name: Text, _ operands: ArraySlice<Int32>) -> Subject {
        guard let receiver = operands.first.map({ subjects[Int($0)] }) else { return .other }
        switch name {
        case "lower", "upper", "trim": return receiver
        case "get":
            guard case .token = receiver, operands.count == 3,
                let key = string(operands[operands.startIndex + 1])
            else { return .other }
            return .claimOrDefault(key)
        default: return .other
        }
    }
}
