"""The functions that ad-hoc SQL may call, by how large their result can be.

DuckDB counts neither texts nor lists that a function makes towards its memory limit, and ends a
query only between two vectors of 2,048 rows. So a function is accepted only if its result is
bounded by its arguments; what is not listed is refused.
"""

from __future__ import annotations

__all__ = ["FIXED", "GATHERING", "LENGTHENING", "MULTIPLYING", "SUMMED", "WIDENED"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# Numbers, moments and truth values, whatever the arguments.
FIXED = _words(
    """
    + - * / // % ** ^ @ ! !__postfix ~ & | << >> = == != <> < <= > >= && <@ @> <-> <=> ^@
    ~~ !~~ ~~* !~~* ~~~ like_escape not_like_escape ilike_escape not_ilike_escape
    abs acos acosh add asin asinh atan atan2 atanh bit_count bit_length cbrt ceil ceiling cos cosh
    cot degrees divide even exp factorial fdiv floor fmod gamma gcd greatest_common_divisor hash
    isfinite isinf isnan lcm least_common_multiple lgamma ln log log10 log2 mod multiply nextafter
    pi pow power radians random round round_even roundbankers sign signbit sin sinh sqrt subtract
    tan tanh trunc xor
    array_cosine_distance array_cosine_similarity array_distance array_inner_product array_length
    ascii array_contains array_has array_has_all array_has_any array_indexof array_position
    cardinality char_length character_length contains ends_with hamming instr
    json_array_length json_contains json_exists json_valid len length length_grapheme
    list_avg list_contains list_count list_distance list_cosine_similarity list_has list_has_all
    list_has_any list_indexof list_inner_product list_median list_position list_product
    list_stddev_pop list_stddev_samp list_sum list_unique list_var_pop list_var_samp array_unique
    map_contains mismatches octet_length ord position prefix regexp_full_match regexp_matches
    starts_with strlen strpos suffix unicode
    age ago century date_add date_diff date_part date_sub date_trunc datediff datepart datesub
    datetrunc day dayname dayofmonth dayofweek dayofyear days_in_month decade epoch epoch_ms
    epoch_ns epoch_us era hour isodow isoyear julian last_day make_date make_time make_timestamp
    make_timestamp_ms make_timestamp_ns make_timestamptz microsecond millennium millisecond minute
    month monthname nanosecond quarter second time_bucket timezone timezone_hour timezone_minute
    to_centuries to_days to_decades to_hours to_microseconds to_millennia to_milliseconds
    to_minutes to_months to_quarters to_seconds to_timestamp to_weeks to_years try_strptime
    strptime week weekday weekofyear year yearweek
    current_date current_localtime current_localtimestamp get_current_time get_current_timestamp
    now today transaction_timestamp uuid uuidv4 uuidv7 gen_random_uuid
    md5 sha1 sha256 typeof pg_typeof format_bytes formatreadablesize formatreadabledecimalsize
    approx_count_distinct approx_quantile avg bit_and bit_or bit_xor bool_and bool_or corr count
    count_if count_star countif covar_pop covar_samp entropy favg fsum geomean geometric_mean
    grouping grouping_id kahan_sum kurtosis kurtosis_pop mad mean product regr_avgx regr_avgy
    regr_count regr_intercept regr_r2 regr_slope regr_sxx regr_sxy regr_syy sem skewness stddev
    stddev_pop stddev_samp sum sum_no_overflow sumkahan var_pop var_samp variance wavg weighted_avg
    cume_dist dense_rank ntile percent_rank rank rank_dense row_number
    """
)

# At most all arguments together.
SUMMED = _words(
    """
    || concat coalesce if ifnull nullif greatest least alias constant_or_null error
    array_append array_cat array_concat array_distinct array_extract array_intersect array_pop_back
    array_pop_front array_prepend array_push_back array_push_front array_reverse array_reverse_sort
    array_slice array_sort array_value array_where chr decode element_at encode flatten
    from_base64 from_hex unhex from_binary unbin json_extract json_extract_path
    json_extract_path_text json_extract_string json_keys json_type json_value -> ->> lcase left
    left_grapheme list_any_value list_append list_cat list_concat list_distinct list_element
    list_extract list_first list_grade_up list_intersect list_last list_max list_min list_mode
    list_pack list_prepend list_reverse list_reverse_sort list_slice list_sort list_value
    list_where list_zip lower ltrim map map_concat map_entries map_extract map_extract_value
    map_from_entries map_keys map_values nfc_normalize regexp_extract reverse right
    right_grapheme row rtrim split_part strip_accents struct_concat struct_extract
    struct_extract_at struct_insert struct_keys struct_pack struct_update struct_values overlay
    substr substring substring_grapheme translate trim ucase union_extract union_tag union_value
    unnest upper url_decode
    any_value arbitrary arg_max arg_max_null arg_min arg_min_null argmax argmin first last max
    max_by median min min_by mode quantile quantile_cont quantile_disc
    fill first_value lag last_value lead nth_value
    """
)

# Each character of the arguments may become some more.
WIDENED = _words(
    """
    base64 bin hex json_quote regexp_escape regexp_extract_all regexp_split_to_array row_to_json
    split str_split str_split_regex strftime string_split string_split_regex string_to_array
    to_base64 to_binary to_hex to_json url_encode
    """
)

# Something of one argument may come once for each character of another.
MULTIPLYING = _words("array_to_string concat_ws regexp_replace replace")

# As much longer as the second argument says, which must be written as a number.
LENGTHENING = _words("lpad repeat rpad")

# Aggregates whose result holds every row's value.
GATHERING = _words("array_agg group_concat histogram list listagg string_agg")
