// libcurl's own names.
// swift-format-ignore-file: AlwaysUseLowerCamelCase

import CCurl
import Glibc

/// libcurl, loaded when the first upstream that needs it is used. Loading it at the start would cost every process 6 MiB.
///
/// The functions below have libcurl's names and replace the header's, which are not linked.
///
/// Safety: the pointers are read once and never change.
private struct CurlLibrary: @unchecked Sendable {
    private let handle: UnsafeMutableRawPointer
    let easySet, easyGet, multiSet: UnsafeMutableRawPointer
    let easyInit: @convention(c) () -> UnsafeMutableRawPointer?
    let easyCleanup, easyReset: @convention(c) (UnsafeMutableRawPointer?) -> Void
    let easyPause: @convention(c) (UnsafeMutableRawPointer?, Int32) -> CURLcode
    let easyError: @convention(c) (CURLcode) -> UnsafePointer<CChar>
    let globalInit: @convention(c) (Int) -> CURLcode
    let multiInit: @convention(c) () -> UnsafeMutableRawPointer?
    let multiCleanup: @convention(c) (UnsafeMutableRawPointer?) -> CURLMcode
    let multiAdd,
        multiRemove: @convention(c) (UnsafeMutableRawPointer?, UnsafeMutableRawPointer?) -> CURLMcode
    let multiRead:
        @convention(c) (UnsafeMutableRawPointer?, UnsafeMutablePointer<Int32>?) ->
            UnsafeMutablePointer<CURLMsg>?
    let multiAction:
        @convention(c) (UnsafeMutableRawPointer?, Int32, Int32, UnsafeMutablePointer<Int32>?) ->
            CURLMcode
    let listAppend:
        @convention(c) (UnsafeMutablePointer<curl_slist>?, UnsafePointer<CChar>?) ->
            UnsafeMutablePointer<curl_slist>?
    let listFree: @convention(c) (UnsafeMutablePointer<curl_slist>?) -> Void

    /// The library, or the reason why it can't be used.
    static let loaded = Result { () throws(Missing) in try CurlLibrary() }

    struct Missing: Error {
        let cause: String
    }

    private init() throws(Missing) {
        func fault() -> Missing {
            let said = dlerror().map { String(cString: $0) } ?? "it can't be loaded"
            return Missing(cause: said)
        }
        guard let handle = dlopen("libcurl.so.4", RTLD_NOW | RTLD_LOCAL) else { throw fault() }
        self.handle = handle
        func find(_ name: String) throws(Missing) -> UnsafeMutableRawPointer {
            guard let found = dlsym(handle, name) else { throw fault() }
            return found
        }
        func function<Function>(_ name: String) throws(Missing) -> Function {
            unsafeBitCast(try find(name), to: Function.self)
        }
        easySet = try find("curl_easy_setopt")
        easyGet = try find("curl_easy_getinfo")
        multiSet = try find("curl_multi_setopt")
        easyInit = try function("curl_easy_init")
        easyCleanup = try function("curl_easy_cleanup")
        easyReset = try function("curl_easy_reset")
        easyPause = try function("curl_easy_pause")
        easyError = try function("curl_easy_strerror")
        globalInit = try function("curl_global_init")
        multiInit = try function("curl_multi_init")
        multiCleanup = try function("curl_multi_cleanup")
        multiAdd = try function("curl_multi_add_handle")
        multiRemove = try function("curl_multi_remove_handle")
        multiRead = try function("curl_multi_info_read")
        multiAction = try function("curl_multi_socket_action")
        listAppend = try function("curl_slist_append")
        listFree = try function("curl_slist_free_all")
    }
}

/// Loads the library. Returns why it can't be loaded; nil if it can.
func curlFault() -> String? {
    if case .failure(let missing) = CurlLibrary.loaded { missing.cause } else { nil }
}

private let curl: CurlLibrary =
    switch CurlLibrary.loaded {
    case .success(let library): library
    case .failure(let missing): preconditionFailure(missing.cause)
    }

func curl_global_init(_ flags: Int) -> CURLcode { curl.globalInit(flags) }
func curl_easy_init() -> UnsafeMutableRawPointer? { curl.easyInit() }
func curl_easy_cleanup(_ easy: UnsafeMutableRawPointer) { curl.easyCleanup(easy) }
func curl_easy_reset(_ easy: UnsafeMutableRawPointer) { curl.easyReset(easy) }
@discardableResult
func curl_easy_pause(_ easy: UnsafeMutableRawPointer, _ what: Int32) -> CURLcode {
    curl.easyPause(easy, what)
}
func curl_easy_strerror(_ code: CURLcode) -> UnsafePointer<CChar> { curl.easyError(code) }
func curl_multi_init() -> UnsafeMutableRawPointer? { curl.multiInit() }
@discardableResult
func curl_multi_cleanup(_ multi: UnsafeMutableRawPointer) -> CURLMcode { curl.multiCleanup(multi) }
@discardableResult
func curl_multi_add_handle(_ multi: UnsafeMutableRawPointer, _ easy: UnsafeMutableRawPointer)
    -> CURLMcode
{ curl.multiAdd(multi, easy) }
@discardableResult
func curl_multi_remove_handle(_ multi: UnsafeMutableRawPointer, _ easy: UnsafeMutableRawPointer)
    -> CURLMcode
{ curl.multiRemove(multi, easy) }
func curl_multi_info_read(_ multi: UnsafeMutableRawPointer, _ rest: UnsafeMutablePointer<Int32>)
    -> UnsafeMutablePointer<CURLMsg>?
{ curl.multiRead(multi, rest) }
@discardableResult
func curl_multi_socket_action(
    _ multi: UnsafeMutableRawPointer, _ socket: Int32, _ events: Int32,
    _ running: UnsafeMutablePointer<Int32>
) -> CURLMcode { curl.multiAction(multi, socket, events, running) }
func curl_slist_append(_ list: UnsafeMutablePointer<curl_slist>?, _ line: String)
    -> UnsafeMutablePointer<curl_slist>?
{ curl.listAppend(list, line) }
func curl_slist_free_all(_ list: UnsafeMutablePointer<curl_slist>?) { curl.listFree(list) }

@discardableResult
func sluice_easy_long(_ easy: UnsafeMutableRawPointer, _ option: CURLoption, _ value: Int)
    -> CURLcode
{ sluice_easy_long(curl.easySet, easy, option, value) }
@discardableResult
func sluice_easy_offset(_ easy: UnsafeMutableRawPointer, _ option: CURLoption, _ value: curl_off_t)
    -> CURLcode
{ sluice_easy_offset(curl.easySet, easy, option, value) }
@discardableResult
func sluice_easy_string(_ easy: UnsafeMutableRawPointer, _ option: CURLoption, _ value: String)
    -> CURLcode
{ sluice_easy_string(curl.easySet, easy, option, value) }
@discardableResult
func sluice_easy_pointer(
    _ easy: UnsafeMutableRawPointer, _ option: CURLoption, _ value: UnsafeMutableRawPointer?
) -> CURLcode { sluice_easy_pointer(curl.easySet, easy, option, value) }
@discardableResult
func sluice_easy_data(
    _ easy: UnsafeMutableRawPointer, _ option: CURLoption,
    _ callback: @escaping sluice_data_callback
) -> CURLcode { sluice_easy_data(curl.easySet, easy, option, callback) }
@discardableResult
func sluice_easy_prereq(
    _ easy: UnsafeMutableRawPointer, _ callback: @escaping sluice_prereq_callback
) -> CURLcode { sluice_easy_prereq(curl.easySet, easy, callback) }
@discardableResult
func sluice_easy_get_long(
    _ easy: UnsafeMutableRawPointer, _ info: CURLINFO, _ value: UnsafeMutablePointer<Int>
) -> CURLcode { sluice_easy_get_long(curl.easyGet, easy, info, value) }
func sluice_easy_get_offset(
    _ easy: UnsafeMutableRawPointer, _ info: CURLINFO, _ value: UnsafeMutablePointer<curl_off_t>
) -> CURLcode { sluice_easy_get_offset(curl.easyGet, easy, info, value) }
@discardableResult
func sluice_multi_long(_ multi: UnsafeMutableRawPointer, _ option: CURLMoption, _ value: Int)
    -> CURLMcode
{ sluice_multi_long(curl.multiSet, multi, option, value) }
@discardableResult
func sluice_multi_pointer(
    _ multi: UnsafeMutableRawPointer, _ option: CURLMoption, _ value: UnsafeMutableRawPointer?
) -> CURLMcode { sluice_multi_pointer(curl.multiSet, multi, option, value) }
@discardableResult
func sluice_multi_socket(
    _ multi: UnsafeMutableRawPointer, _ callback: @escaping sluice_socket_callback
) -> CURLMcode { sluice_multi_socket(curl.multiSet, multi, callback) }
@discardableResult
func sluice_multi_timer(
    _ multi: UnsafeMutableRawPointer, _ callback: @escaping sluice_timer_callback
) -> CURLMcode { sluice_multi_timer(curl.multiSet, multi, callback) }
