import Testing

@testable import SecurityRules

/// The results of methods and functions.
@Suite struct LibraryTests {
    @Test func strings() {
        check(
            """
            'ABCé'.lower() → 'abcé'
            'abcÉé'.upper() → 'ABCÉé'
            ' \\t a b \\n'.trim() → 'a b'
            ''.size() → 0
            'é'.size() → 1
            'hello world'.matches('world') → false
            'hello world'.matches('.*world') → true
            'image/png'.matches('image/.*') → true
            'image/'.matches('image/.*') → true
            'image/'.matches('image/.+') → false
            'image/p'.matches('image/.+') → true
            'video/png'.matches('image/.*') → false
            'image/a\\nb'.matches('image/.*') → false
            'image/é'.matches('image/.*') → true
            'IMAGE/PNG'.matches('(?i)image/.*') → true
            'a.b'.matches('a\\\\.b') → true
            'axb'.matches('a\\\\.b') → false
            'axb'.matches('a[.]b') → false
            'abc'.matches('abc') → true
            'abcd'.matches('abc') → false
            'a'.matches('a' + '?') → true
            'a'.matches('(' + 'a') → error Invalid regular expression pattern.
            'a'.matches(1) → error Unsupported operation error. Received: string.matches(int). Expected: string.matches(string).
            'a'.matches(null) → error Null value error.
            'a'.contains('a') → error Function not found error: Name: [contains].
            'a'.size(1) → error Incorrect number of arguments. Received: 1. Expected: string.size().
            'a/b/c'.split('/') → ['a', 'b', 'c']
            'a1b22c'.split('[0-9]+') → ['a', 'b', 'c']
            '/a'.split('/') → ['', 'a']
            'a//'.split('/') → ['a']
            'abc'.split('') → ['a', 'b', 'c']
            ''.split('/') → ['']
            'a'.split('a') → []
            'aa'.split('a') → []
            'ba'.split('a') → ['b']
            'b'.split('a') → ['b']
            ''.split('') → ['']
            'a'.split('/') → ['a']
            'banana'.replace('a', 'o') → 'bonono'
            'banana'.replace('ana', 'ee') → 'beena'
            'foo@test.com'.replace('.', '-') → '------------'
            'john smith'.replace('(\\\\w+) (\\\\w+)', '$2 $1') → 'smith john'
            'a'.replace('a', '\\\\$1') → '$1'
            'a'.replace('a', '$1') → error Invalid replacement string
            'aé'.replace('', '-') → '-a-é-'
            '€'.toUtf8() → b'\\xE2\\x82\\xAC'
            """)
    }

    @Test func listsAndSets() {
        check(
            """
            [1, 2].size() → 2
            [1].concat([2, 1]) → [1, 2, 1]
            ['a', 'b'].hasAll(['a']) → true
            ['a', 'b'].hasAll(['a', 'c']) → false
            ['a'].hasAll([]) → true
            ['a', 'b'].hasAny(['b', 'c']) → true
            ['a', 'b'].hasAny([]) → false
            ['a', 'b'].hasOnly(['a', 'c']) → false
            ['a', 'b'].hasOnly(['a', 'b', 'c']) → true
            ['a', 'b'].hasOnly(['b', 'a']) → true
            ['a', 'a', 'b'].hasOnly(['a', 'b', 'b']) → true
            ['a'].hasAll('a') → error Received: list.hasAll(string). Expected: list.hasAll(list).
            ['a', 'b'].join('-') → 'a-b'
            [1, true, null, 1.5].join(',') → '1,true,null,1.5'
            [].join(',') → ''
            [[1]].join(',') → error Received: list of list.
            [1, 2, 1, 3].removeAll([1]) → [2, 3]
            [1, 1.0, 2].toSet() → [1, 2].toSet()
            [1, 2].toSet().size() → 2
            ['a', 'b'].toSet().difference(['a', 'c'].toSet()) → ['b'].toSet()
            ['a'].toSet().difference(['a']) → error Unsupported operation error. Received: set.difference(list). Expected: set.difference(set).
            ['a', 'b'].toSet().intersection(['b', 'c'].toSet()) → ['b'].toSet()
            ['a'].toSet().union(['b'].toSet()) → ['a', 'b'].toSet()
            ['a', 'b'].toSet().hasAll(['a']) → true
            ['a', 'b'].toSet().hasAny(['c', 'd'].toSet()) → false
            ['a', 'b'].toSet().hasOnly(['a', 'c']) → false
            ['a', 'b'].toSet().hasOnly(['a', 'b', 'c']) → true
            'a' in ['a'].toSet() → true
            ['a'].union(['b'].toSet()) → error Function not found error: Name: [union].
            """)
    }

    @Test func maps() {
        check(
            """
            {'b': 1, 'a': 2}.keys() → ['a', 'b']
            {'b': 1, 'a': 2}.values() → [1, 2]
            {'a': 1}.size() → 1
            {'a': 1}.get('a', 2) → 1
            {'a': 1}.get('b', 2) → 2
            {'a': {'b': 1}}.get(['a', 'b'], 7) → 1
            {'a': {'b': 1}}.get(['a', 'c'], 7) → 7
            {'a': 1}.get(['a', 'b'], 7) → 7
            {'a': 1}.get([], 7) → 7
            {'a': 1}.get(['a', 1], 7) → 7
            {'a': 1}.get('a') → error Incorrect number of arguments. Received: 1. Expected: map.get(list, any).
            {'a': 1}.get(1, 2) → error Received: map.get(int, int). Expected: map.get(string|list, any).
            {'a': 1}.hasAll(['a']) → error Function not found error: Name: [hasAll].
            {'a': 1}.keys().union([].toSet()) → error Function not found error: Name: [union].
            {'a': 1, 'b': 2}.diff({'b': 3, 'c': 4}).addedKeys() → ['a'].toSet()
            {'a': 1, 'b': 2}.diff({'b': 3, 'c': 4}).removedKeys() → ['c'].toSet()
            {'a': 1, 'b': 2}.diff({'b': 3, 'c': 4}).changedKeys() → ['b'].toSet()
            {'a': 1, 'b': 2}.diff({'b': 3, 'c': 4}).affectedKeys() → ['a', 'c', 'b'].toSet()
            {'a': 1, 'b': 2}.diff({'b': 2.0}).unchangedKeys() → ['b'].toSet()
            {'a': 1}.diff({'a': 2}).affectedKeys().hasOnly(['a']) → true
            {'a': 1}.diff({}) == {'a': 2}.diff({}) → true
            """)
    }

    @Test func bytesAndDigests() {
        check(
            """
            b'hi'.size() → 2
            b'hi'.toBase64() → 'aGk='
            b'~~~'.toBase64() → 'fn5-'
            b'?'.toBase64() → 'Pw=='
            b''.toBase64() → ''
            b'\\xfa\\x01'.toHexString() → 'FA01'
            hashing.crc32('123456789').toHexString() → '2639F4CB'
            hashing.crc32c('123456789').toHexString() → '839206E3'
            hashing.md5('').toHexString() → 'D41D8CD98F00B204E9800998ECF8427E'
            hashing.md5('abc').toHexString() → '900150983CD24FB0D6963F7D28E17F72'
            hashing.md5(b'12345678901234567890123456789012345678901234567890123456789012345678901234567890').toHexString() → '57EDF4A22BE3C955AC49DA2E2107B67A'
            hashing.sha256('').toHexString() → 'E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855'
            hashing.sha256('abc').toHexString() → 'BA7816BF8F01CFEA414140DE5DAE2223B00361A396177A9CB410FF61F20015AD'
            hashing.md5(1) → error Received: hashing.md5(int). Expected: hashing.md5(bytes|string).
            """)
    }

    @Test func pathsAndOffsets() {
        check(
            """
            path('a/b') → /a/b
            path(/a/b) → error Unsupported operation error. Received: path(path). Expected: path(string).
            path('users/{uid}').bind({'uid': 'alice'}) == path('users/alice') → true
            path('users/{uid}').bind({'uid': 'alice'}).uid → 'alice'
            path('users/{uid}').bind({'uid': 'alice'})['uid'] → 'alice'
            (/path/$(foo)/$(bar)).bind({'foo': 'a', 'bar': 'b'}) → /path/a/b
            /users/{uid}.bind({'uid': 'a'}) → /users/a
            /a/$(bucket)/b → /a/photos/b
            /a/$(1 + 1) → /a/2
            /a/$('x/y') == /a/x/y → false
            /a/$(/x/y)/b == /a/x/y/b → true
            /a/$(null) → error Null value error.
            /a/$(true) → error Received: /$(bool)
            string(/a/b) → '/a/b'
            request.path[0] → 'b'
            request.path[1] → 'photos'
            request.path[2:4] → /o/dir
            request.path == path('/b/photos/o/dir/cat.png') → true
            request.path == /b/$(bucket)/o/dir/cat.png → true
            path == path('dir/cat.png') → true
            path == 'dir/cat.png' → false
            path[1] → 'cat.png'
            string(path) → '/dir/cat.png'
            latlng.value(1.5, 2).latitude() → 1.5
            latlng.value(1.5, 2).longitude() → 2.0
            latlng.value(-100, -122.08) → error Latitude should be in [-90,90] range and longitude should be in [-180,180] range. latitude: -100.0, longitude: -122.08.
            math.round(latlng.value(0, 0).distance(latlng.value(0, 90)) / 1000) → 10008
            """)
    }

    @Test func times() {
        check(
            """
            timestamp.date(2024, 2, 29).dayOfYear() → 60
            timestamp.date(2024, 12, 31).dayOfYear() → 366
            timestamp.date(2023, 2, 29) → error Invalid value for timestamp.date.
            timestamp.date(2024, 13, 1) → error Invalid value for timestamp.date.
            timestamp.date(0, 1, 1) → error Invalid value for timestamp.date.
            timestamp.date(1, 1, 1) → timestamp(0001-01-01T00:00:00Z)
            timestamp.date(9999, 12, 31).year() → 9999
            timestamp.value(0) == timestamp.date(1970, 1, 1) → true
            timestamp.value(-1) → timestamp(1969-12-31T23:59:59.999000000Z)
            timestamp.value(-1).toMillis() → -1
            timestamp.value(1714564800123).nanos() → 123000000
            request.time → timestamp(2024-05-01T12:00:00Z)
            request.time.year() → 2024
            request.time.month() → 5
            request.time.day() → 1
            request.time.dayOfWeek() → 3
            request.time.hours() → 12
            request.time.minutes() → 0
            request.time.seconds() → 0
            request.time.date() == timestamp.date(2024, 5, 1) → true
            request.time.time() → duration(43200s)
            request.time.toMillis() → 1714564800000
            request.time + duration.value(1, 'd') > request.time → true
            duration.value(1, 'h') + request.time == request.time + duration.time(1, 0, 0, 0) → true
            request.time - duration.value(1, 's') < request.time → true
            request.time - timestamp.date(2024, 5, 1) → duration(43200s)
            duration.value(1500, 'ms').seconds() → 1
            duration.value(1500, 'ms').nanos() → 500000000
            duration.value(-1500, 'ms').seconds() → -1
            duration.value(-1500, 'ms').nanos() → -500000000
            duration.value(1, 'w') == duration.value(7, 'd') → true
            duration.value(90, 'm') == duration.value(5400, 's') → true
            duration.value(1, 'y') → error Invalid value for duration.value.
            duration.abs(duration.value(-3, 's')) → duration(3s)
            duration.value(3, 's') - duration.value(5, 's') → duration(-2s)
            duration.value(1, 's') < duration.value(1001, 'ms') → true
            duration.time(1, 2, 3, 4) → duration(3723.000000004s)
            timestamp.date(9999, 12, 31) + duration.value(2, 'd') → error Timestamp or duration is out of range.
            request.time + 1 → error Received: timestamp + int.
            duration.value(315576000001, 's') → error Invalid value for duration.value.
            """)
    }

    @Test func conversionsAndNumbers() {
        check(
            """
            int('2') → 2
            int(2.7) → 2
            int(-2.7) → -2
            int('x') → error Type conversion error. Argument: [x], From type: [string], To type: [int].
            int(true) → error Received: int(bool). Expected: int(string|int|float).
            int(1e) → load
            float(2) → 2.0
            float('2.5') → 2.5
            float('nan') → error Type conversion error. Argument: [nan], From type: [string], To type: [float].
            string(true) → 'true'
            string(2.0) → '2.0'
            string(1) → '1'
            string(null) → 'null'
            string('a') → 'a'
            string([1]) → error Received: string(list).
            math.abs(-1) → 1
            math.abs(-1.5) → 1.5
            math.ceil(1.2) → 2.0
            math.floor(-1.2) → -2.0
            math.round(2.5) → 3
            math.round(-2.5) → -2
            math.round(0.49999999999999994) → 0
            math.sqrt(4) → 2.0
            math.pow(2, 10) → 1024.0
            math.isNaN(0.0 / 0.0) → true
            math.isInfinite(1 / 0.0) → error Function not found error: Name: [math.isInfinite].
            math.ceil(1 / 0.0) → inf
            math.abs('a') → error Received: math.abs(string).
            bool('true') → error Function not found error: Name: [bool].
            math.foo(1) → error Function not found error: Name: [math.foo].
            exists(/a/b) → error Function not found error: Name: [exists].
            foo → error Variable not found error: Name: [foo].
            debug(1) → 1
            """.replacingLine("int(1e)"))
    }

    @Test func documents() {
        let at = "/databases/(default)/documents/users"
        check(
            """
            firestore.get(\(at)/alice).data.role → 'admin'
            firestore.get(\(at)/alice).id → 'alice'
            firestore.get(\(at)/$(request.auth.uid)).data.age → 7
            firestore.exists(\(at)/alice) → true
            firestore.exists(\(at)/bob) → false
            firestore.get(\(at)/bob).data → error Null value error.
            firestore.get(\(at)/broken).data → error Service call error.
            firestore.exists(\(at)/broken) → error Service call error.
            firestore.exists(/databases/other/documents/users/alice) → error Only the database (default) can be read.
            firestore.exists(/users/alice) → error A document's path is
            firestore.exists(\(at)/$('')) → error can't be empty, '.' or '..'
            firestore.exists(\(at)/$('.')) → error can't be empty, '.' or '..'
            firestore.exists(\(at)/$('..')) → error can't be empty, '.' or '..'
            firestore.exists(path('\(at)//alice/x')) → error can't be empty, '.' or '..'
            firestore.exists(path('\(at)/{uid}').bind({'uid': '..'})) → error can't be empty, '.' or '..'
            firestore.get(path('\(at)/{uid}').bind({'uid': 'alice'})).data.age → 7
            firestore.exists('\(at)/alice') → error Received: firestore.exists(string). Expected: firestore.exists(path).
            firestore.exists(\(at)/alice) && firestore.get(\(at)/$('ali' + 'ce')).data.age == 7 && !firestore.exists(\(at)/bob) → true
            firestore.exists(\(at)/alice) && !firestore.exists(\(at)/bob) && firestore.exists(\(at)/carol) → error At most 2 different documents
            true || firestore.exists(\(at)/carol) && firestore.exists(\(at)/alice) && firestore.exists(\(at)/bob) → true
            """)
    }

    /// The evaluator implements exactly the entries of the table.
    @Test func tableIsComplete() throws {
        let samples: [TypeName: String] = [
            .string: "'a'", .list: "['a']", .map: "{'a': 1}", .set: "['a'].toSet()", .bytes: "b'a'",
            .path: "(/a)", .timestamp: "request.time", .duration: "duration.value(1, 's')",
            .latlng: "latlng.value(1, 2)", .mapDiff: "{}.diff({})", .int: "1", .float: "1.5",
            .bool: "true",
        ]
        func sample(_ types: String) throws -> String {
            guard let first = types.split(separator: "|").first else { return "1" }
            let type = try #require(TypeName(rawValue: String(first)))
            return try #require(samples[type])
        }
        for entry in Library.methods {
            guard case .type(let type) = entry.owner else { continue }
            let arguments = try entry.parameters.map(sample).joined(separator: ", ")
            let call = "\(try #require(samples[type])).\(entry.name)(\(arguments))"
            let found = outcome("debug(\(call))")
            #expect(!found.contains(": "), "\(call): \(found)")
        }
        for function in Function.allCases {
            let entry = function.entry
            guard entry.owner != .namespace("firestore") else { continue }
            let arguments = try entry.parameters.map(sample).joined(separator: ", ")
            let found = outcome("debug(\(entry.fullName)(\(arguments)))")
            #expect(!found.contains("not found"), "\(function): \(found)")
        }
        for (type, value) in samples {
            for name in MethodName.allCases where name != .unknown {
                guard Library.method(name, of: type) == nil else { continue }
                let found = outcome("debug(\(value).\(name.name)())")
                #expect(found.contains("Function not found"), "\(value).\(name.name)()")
            }
        }
    }
}
