import Testing

@testable import SecurityRules

/// The values of expressions, one per line: `expression → value`.
@Suite struct ExpressionTests {
    @Test func arithmetic() {
        check(
            """
            1 + 2 * 3 → 7
            (1 + 2) * 3 → 9
            10 / 4 → 2
            -7 / 2 → -3
            -7 % 2 → -1
            7 % -2 → 1
            10 / 4.0 → 2.5
            1 + 1.5 → 2.5
            1.0 / 0 → inf
            10 / 0 → error Divide by zero error.
            10 % 0 → error Divide by zero error.
            0.0 / 0.0 == 0.0 / 0.0 → false
            9223372036854775807 + 1 → error Integer overflow error.
            -9223372036854775808 → -9223372036854775808
            -9223372036854775808 - 1 → error Integer overflow error.
            -(-9223372036854775808) → error Integer overflow error.
            9223372036854775807 * 2 → error Integer overflow error.
            -9223372036854775808 / -1 → error Integer overflow error.
            10 - 2 - 3 → 5
            2 * 3 % 4 → 2
            -2 * -3 → 6
            --2 → 2
            5 * 1024 * 1024 → 5242880
            5.5 % 2 → 1.5
            .5 + 1. → 1.5
            'a' + 'b' → 'ab'
            'a' + 1 → error Unsupported operation error. Received: string + int. Expected: string + string.
            1 + 'a' → error Unsupported operation error. Received: int + string. Expected: int + int.
            'a' - 'b' → error Unsupported operation error. Received: string - string.
            null + 1 → error Received: null + int.
            [1] + [2] → error Received: list + list.
            true + true → error Received: bool + bool.
            -'a' → error Received: -string. Expected: -int.
            -null → error Null value error.
            """)
    }

    @Test func comparison() {
        check(
            """
            1 < 2 → true
            2 <= 2 → true
            3 > 4 → false
            4 >= 4 → true
            1 < 1.5 → true
            2.0 >= 2 → true
            'a' < 'b' → true
            'a' < 'B' → false
            'abc' < 'abd' → true
            'a' < 'ab' → true
            '\\uFFFD' < '\\uD83D\\uDE00' → false
            1 < request.time → error Unsupported operation error. Received: int < timestamp. Expected: int < int.
            'a' < 1 → error Received: string < int. Expected: string < string.
            true < false → error Received: bool < bool.
            null < 1 → error Received: null < int.
            1 == 1 → true
            1 == 1.0 → true
            1 != 1.0 → false
            [1] == [1.0] → false
            [1] == [1] → true
            {'a': 1} == {'a': 1.0} → false
            {'a': 1, 'b': 2} == {'b': 2, 'a': 1} → true
            {} == {} → true
            [1].toSet() == [1.0].toSet() → true
            [[1]].toSet() == [[1.0]].toSet() → true
            [1, 2].toSet() == [2, 1].toSet() → true
            [1, 2] == [2, 1] → false
            1 == '1' → false
            1 != '1' → true
            null == null → true
            null == 1 → false
            null != 1 → true
            'a' == null → false
            true == true → true
            /a/b == /a/b → true
            /a/b == path('a/b') → true
            path('/a/b/') == path('a/b') → true
            /a/b == 'a/b' → false
            b'a' == 'a' → false
            b'a' == b'\\x61' → true
            'é' == 'e\\u0301' → false
            timestamp.date(2024, 5, 1) == timestamp.date(2024, 5, 1) → true
            latlng.value(1, 2) == latlng.value(1.0, 2.0) → true
            1 == 2 == false → true
            2 in [1, 2] == true → true
            1 + 1 == 2 → true
            1 is int == true → true
            """)
    }

    @Test func logic() {
        check(
            """
            true && true → true
            true && false → false
            false || true → true
            !true → false
            !!true → true
            request.x && false → false
            false && request.x → false
            request.x && true → error Property x is undefined on object.
            true && request.x → error Property x is undefined on object.
            request.x || true → true
            true || request.x → true
            request.x || false → error Property x is undefined on object.
            false || request.x → error Property x is undefined on object.
            !request.x → error Property x is undefined on object.
            1 && true → error Unsupported operation error. Received: int && bool. Expected: bool && bool.
            false || 1 → error Received: bool || int.
            null && true → error Null value error.
            (1 && true) || !(1 && true) → error Received: int && bool.
            1 && false → false
            'x' || true → true
            !1 → error Received: !int. Expected: !bool.
            !null → error Null value error.
            true || false && false → true
            false && false || true → true
            true ? 1 : 2 → 1
            false ? 1 : 2 → 2
            1 ? 1 : 1 → error Received: int ? any : any.
            null ? 1 : 1 → error Null value error.
            request.x ? 1 : 1 → error Property x
            true ? 1 : request.x → 1
            false ? 1 : true ? 2 : 3 → 2
            true ? false ? 1 : 2 : 3 → 2
            request.x == 1 || request.y == 1 || true → true
            request.x == 1 && request.y == 1 && false → false
            request.x && request.y → error Property x
            """)
    }

    @Test func literalsAndTypes() {
        check(
            """
            1 is int → true
            1 is float → false
            1.0 is float → true
            1.0 is int → false
            1 is number → true
            1.5 is number → true
            'a' is number → false
            'a' is string → true
            true is bool → true
            null is null → true
            1 is null → false
            b'a' is bytes → true
            [] is list → true
            {} is map → true
            [].toSet() is set → true
            {}.diff({}) is map_diff → true
            /a/b is path → true
            request.path is path → true
            request.time is timestamp → true
            duration.value(1, 's') is duration → true
            latlng.value(1, 2) is latlng → true
            request is map → true
            request.auth is map → true
            resource is map → true
            bucket is string → true
            path is path → true
            request.x is int → error Property x
            'it''s' → load
            'a\\tb\\n\\'\\"\\\\/' → 'a\\tb\\n\\'"\\\\/'
            "it's" → 'it\\'s'
            '\\x41\\u00e9\\uD83D\\uDE00\\101' → 'Aé😀A'
            b'\\x2A\\052*é' → b'\\x2A\\x2A\\x2A\\xC3\\xA9'
            [1, 'a', [true,],] → [1, 'a', [true]]
            {'b': 1, 'a': {'c': null,},} → {'a': {'c': null}, 'b': 1}
            {1: 2} → error Received: {int: any}. Expected: {string: any}.
            {'a': 1, 'a': 2} → {'a': 2}
            [request.x, request.y] → error Property x
            {'a': request.x} → error Property x
            """.replacingLine("'it''s'"))
    }

    @Test func access() {
        check(
            """
            {'a': 1}.a → 1
            {'a': 1}['a'] → 1
            {'a': 1}.b → error Property b is undefined on object.
            {'a': 1}['b'] → error Property b is undefined on object.
            {'a': 1}[1] → error Received: map[int]. Expected: map[string].
            {'a': {'b': [1, 2]}}.a.b[1] → 2
            'a' in {'a': 1} → true
            'toString' in {'a': 1} → false
            1 in [1, 2] → true
            [1] in [[1.0]] → false
            1.0 in [1].toSet() → true
            'a' in 'abc' → error Function not found error: Name: [in].
            'a' in null → error Null value error.
            request.x in request.y → error Property y
            request.x in [1] → error Property x
            null.a → error Null value error.
            null[0] → error Null value error.
            null.size() → error Null value error.
            1.a → load
            'a'.b → error Property b is undefined on object.
            [1, 2, 3][0] → 1
            [1, 2, 3][3] → error Index out of bound error. Index: [3] , size: [3].
            [1, 2, 3][-1] → error Index out of bound error. Index: [-1] , size: [3].
            [1, 2, 3, 4][1:99] → error Index out of bound error. Index: [98] , size: [4].
            [1, 2, 3, 4][1:3] → [2, 3]
            [1, 2, 3, 4][2:] → [3, 4]
            [1, 2, 3, 4][:2] → [1, 2]
            [1, 2][1:1] → []
            [1, 2][2:2] → error Index out of bound error.
            [1, 2][2:1] → error Index out of bound error.
            'abcd'[1] → 'b'
            'abcd'[4] → error Index out of bound error. Index: [4] , size: [4].
            'abcd'[1:3] → 'bc'
            'abcd'[1:99] → error Index out of bound error. Index: [98] , size: [4].
            'abc'[3:3] → error Index out of bound error.
            'a😀b'.size() → 4
            'a😀b'[3] → 'b'
            'a😀b'[1:3] → '😀'
            'a😀b'[1:2].size() → 1
            'a😀b'[0:2] + 'a😀b'[2:4] == 'a😀b' → false
            'éa'[1] → 'a'
            /a/b/c[1] → 'b'
            /a/b/c[3] → error Index out of bound error. Index: [3] , size: [3].
            1[0] → error Received: int[int].
            [1]['a'] → error Received: list[string].
            [1]['a':] → error Received: list[string:int]
            request.x[request.y] → error Property x
            """.replacingLine("1.a"))
    }

    @Test func evaluationOrder() {
        check(
            """
            request.x + request.y → error Property x
            request.x[request.y] → error Property x
            null.foo(request.x) → error Null value error.
            'a'.foo(request.x) → error Function not found error: Name: [foo].
            'a'.matches(request.x) → error Property x
            f(request.x) → true
            f(null.x) → true
            f(1) → true
            """, functions: "function f(x) { return true || x == 1; }")
    }
}

extension StringProtocol {
    func components(_ separator: String) -> [String] {
        var parts: [String] = []
        var rest = self[...]
        while let range = rest.firstRange(of: separator) {
            parts.append(String(rest[..<range.lowerBound]))
            rest = rest[range.upperBound...]
        }
        return parts + [String(rest)]
    }

    /// Removes lines with this prefix. Syntax errors are tested in `DiagnosticTests`.
    func replacingLine(_ prefix: String) -> String {
        split(separator: "\n").filter { !$0.hasPrefix(prefix + " ") }.joined(separator: "\n")
    }
}
