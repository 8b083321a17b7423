"""The parts of the contract that each upstream can't fulfil. The named tests must fail with that upstream."""

import re

S3 = ("seaweedfs", "moto", "rclone")
#: The upstreams with upload sessions.
SESSIONS = ("seaweedfs", "moto", "gcs-model")
ON_THERE = "test_conditions_on_an_existing_object"
#: Conditions whose tests fail if the upstream can't evaluate them atomically with a patch or a deletion.
DECIDED = {
    'If-Match: *', 'If-Match: {etag}', 'If-Match: "other", {etag}', 'If-Match: "other"', "If-Match: W/{etag}",
    "If-None-Match: *", "If-None-Match: {etag}", "If-None-Match: W/{etag}", 'If-None-Match: "a", {etag}',
    'If-None-Match: "other"', "If-Modified-Since: Sat, 01 Jan 2000 00:00:00 GMT",
    "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT", "If-Modified-Since: {date}",
    "If-Unmodified-Since: Sat, 01 Jan 2000 00:00:00 GMT", "If-Unmodified-Since: Fri, 01 Jan 2100 00:00:00 GMT",
    "If-Unmodified-Since: {date}", "X-Object-Generation-Match: {generation}", "X-Object-Generation-Match: 1",
    "X-Object-Generation-Match: 0", "X-Object-Metageneration-Match: 1", "X-Object-Metageneration-Match: 2",
    "X-Object-Metageneration-Match: 0",
}
PATCH_REFUSED = "it can't pin a copy to a version, so a patch with a condition is refused with 501"
FILES = "its names are those of files: no //, at most 255 bytes in a segment, and not both a and a/b"
NO_CONDITIONS = "it decides no preconditions, so they are refused with 501"
IGNORED = "it decides no preconditions of patches and deletions"
NULLS = "a null in a patch stores an empty text in place of removing the key"

#: Upstreams, a test, its parameters without the transport (None: all), and why it fails.
LIMITS = [
    # S3
    (S3, "test_the_entity_tag_of_replaced_bytes_no_longer_matches", None, "equal bytes have equal entity tags"),
    (S3, "test_equal_bytes_are_a_new_generation_with_none_of_the_old_metadata", None, "equal bytes have equal entity tags"),
    (S3, ON_THERE, DECIDED, PATCH_REFUSED),
    (S3, "test_conditions_on_a_missing_object", None, PATCH_REFUSED),
    (S3, "test_preconditions", None, PATCH_REFUSED),
    *((("moto",), test, None, PATCH_REFUSED) for test in (
        "test_tokens_are_minted_by_reading_metadata", "test_minting_needs_get_alone",
        "test_administrators_change_tokens", "test_at_most_sixteen_tokens")),
    (("moto",), "test_an_administrator_of_one_source", {"alice:alice-True"}, PATCH_REFUSED),
    (S3, "test_multipart_content_is_kept", {"content5", "content6", "content7"}, "an object of several parts has no md5"),
    *((("rclone",), test, None, NO_CONDITIONS) for test in (
        "test_several_conditions_hold_together", "test_preconditions_are_about_the_name_of_the_copy",
        "test_many_objects_are_deleted_with_one_request", "test_a_move_leaves_one_object")),
    (("seaweedfs",), "test_names_that_can_not_be_requested_are_not_listed", None,
     "a//b is a/b to it"),
    (("seaweedfs",), "test_hidden_names_are_skipped_between_pages", None, "it refuses such names"),
    (("seaweedfs",), "test_every_other_name_is_decoded_once", {"%22%5C"}, "a backslash is a slash to it"),
    (("seaweedfs",), "test_every_other_name_is_decoded_once",
     {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "%C3%A9%C3%A9%C3%A9%C3%A9%C3%A9"}, "a segment of a name has at most 255 bytes"),
    *((("moto",), test, None, "it takes application/x-www-form-urlencoded for a form, and keeps nothing of it") for test in (
        "test_http_1_0_is_closed_after_the_response", "test_upgrade_to_h2c_is_ignored",
        "test_head_has_the_fields_of_get_and_no_body")),
    (("moto",), "test_prefixes_and_items_count_together_in_byte_order", None, "its XML has characters that XML can't have"),
    (("moto",), "test_hidden_names_are_skipped_between_pages", None, "it has no names with //"),
    *((("rclone",), test, None, FILES) for test in (
        "test_prefixes_and_items_count_together_in_byte_order", "test_hidden_names_are_skipped_between_pages",
        "test_names_that_can_not_be_requested_are_not_listed",
        "test_names_are_compared_byte_by_byte", "test_an_object_and_a_folder_of_the_same_name")),
    (("rclone",), "test_every_other_name_is_decoded_once",
     {"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx", "%C3%A9%C3%A9%C3%A9%C3%A9%C3%A9"}, FILES),
    *((("rclone",), test, None, "its custom metadata has at most 2,000 bytes") for test in (
        "test_more_custom_metadata_than_a_header_should_have", "test_custom_metadata_has_at_most_8_kib",
        "test_an_upload_with_too_much_custom_metadata")),
    (("rclone",), "test_a_denied_upload_sends_no_body", {"a condition", "a missing object"}, NO_CONDITIONS),
    (("rclone",), "test_curl_gets_the_denial_without_sending", None, NO_CONDITIONS),
    (("rclone",), "test_writers_of_one_name_take_turns", None, NO_CONDITIONS),
    # S3 in front
    (S3, "test_checksums_of_parts", None, "its list of parts has no checksums"),
    (S3, "test_attributes_of_parts", None, "it does not report the sizes of all parts"),
    (("moto",), "test_a_copy_onto_itself_has_conditions", None, PATCH_REFUSED),
    (("moto",), "test_a_part_of_a_store_that_knows_it", None, "it reads the whole object for a part"),
    (("moto",), "test_a_part_by_its_number", None, "it reads the whole object for a part"),
    (("seaweedfs",), "test_a_part_by_its_number", None, "its parts keep the numbers of the upload"),
    (("moto",), "test_gaps_and_unlisted_parts", None, "it lists no parts after a number"),
    (("seaweedfs",), "test_names", {"clear-dir/", "dir/"}, "a folder has no bytes there"),
    # Emulators of Google Cloud Storage
    (("fake-gcs-server",), ON_THERE,
     {"If-None-Match: *", "X-Object-Generation-Match: 0", "X-Object-Generation-Match: 1"}, IGNORED),
    (("fake-gcs-server",), "test_several_conditions_hold_together", None, IGNORED),
    (("fake-gcs-server", "gcp-storage-emulator"), "test_many_objects_are_deleted_with_one_request", None, IGNORED),
    (("gcp-storage-emulator",), "test_a_body_changes_the_properties_of_the_copy", None,
     "a copy has the properties of its source"),
    (("fake-gcs-server",), "test_the_entity_tag_of_replaced_bytes_no_longer_matches", None, IGNORED),
    *((("fake-gcs-server",), test, None, NULLS) for test in (
        "test_keys_that_look_the_same_are_different", "test_only_named_properties_change",
        "test_each_property_is_set_and_deleted", "test_null_deletes_a_key_and_all_of_custom_metadata",
        "test_custom_metadata_has_at_most_8_kib")),
    (("fake-gcs-server",), "test_more_custom_metadata_than_a_header_should_have", None,
     "it sends a field for each of thousands of pairs, more than a head may have"),
    (("fake-gcs-server",), "test_an_empty_patch_counts", None, "a patch that changes nothing is no new metageneration"),
]


def reason(upstream, test):
    """Why a test must fail with an upstream; None if it must pass."""
    name, parameter = re.fullmatch(r".*::(\w+)(?:\[(.*)\])?", test).groups()
    parameter = re.sub(r"^(http1|h2c|h2|tls)(-|$)", "", parameter or "")
    for upstreams, function, parameters, why in LIMITS:
        if upstream in upstreams and name == function and (parameters is None or parameter in parameters):
            return why
    return None
