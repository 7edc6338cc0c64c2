#include <optional>
#include <stdexcept>
#include <string>

#include "bindings.h"
#include "checks.h"
#include "key_index.h"
#include "visit.h"

namespace khop::bindings {
namespace {

TextKeys checked_keys(const Values& offsets, const Bytes& bytes) {
  const auto span = span_of(offsets);
  check_offset_span(span, bytes.size());
  return {span, reinterpret_cast<const char*>(bytes.data())};
}

void check_bits(int bits) {
  if (bits < 0 || bits > 62) throw std::invalid_argument("bits " + std::to_string(bits) + ": are 0 to 62");
}

void text_buckets(const Values& offsets, const Bytes& bytes, int bits, const Into<std::int64_t>& bucket,
                  const Into<std::int16_t>& tag) {
  check_bits(bits);
  const nb::gil_scoped_release release;
  const TextKeys keys = checked_keys(offsets, bytes);
  check_size(bucket.size(), static_cast<std::size_t>(keys.size()), "bucket");
  check_size(tag.size(), bucket.size(), "tag");
  key_buckets(keys, bits, typed_span<std::int64_t>(bucket), typed_span<std::int16_t>(tag));
}

void integer_buckets(const Values& values, int bits, const Into<std::int64_t>& bucket, const Into<std::int16_t>& tag) {
  check_bits(bits);
  const nb::gil_scoped_release release;
  check_size(bucket.size(), values.size(), "bucket");
  check_size(tag.size(), bucket.size(), "tag");
  key_buckets(IntegerKeys{span_of(values)}, bits, typed_span<std::int64_t>(bucket), typed_span<std::int16_t>(tag));
}

// fn(index), typed by the ids.
template <class Fn>
void with_index(const Values& buckets, const AnyIn& ids, const In<std::int16_t>& tags, std::int64_t keys, Fn&& fn) {
  int bits = 0;
  while (bits < 62 && (std::size_t{1} << bits) + 1 < buckets.size()) ++bits;
  check_size(buckets.size(), (std::size_t{1} << bits) + 1, "buckets");
  check_size(ids.size(), static_cast<std::size_t>(keys), "ids");
  check_size(tags.size(), ids.size(), "tags");
  visit_index(ids, [&](auto id) {
    const nb::gil_scoped_release release;
    fn(KeyIndex<decltype(id)>{bits, span_of(buckets), typed_span<const decltype(id)>(ids), span_of(tags)});
  });
}

void find_text_keys(const Values& buckets, const AnyIn& ids, const In<std::int16_t>& tags, const Values& stored_offsets,
                    const Bytes& stored_bytes, const Values& offsets, const Bytes& bytes, const Into<std::int64_t>& found) {
  if (stored_offsets.size() == 0) throw std::invalid_argument("offsets have no entry: one more than strings is needed");
  const TextKeys stored{span_of(stored_offsets), reinterpret_cast<const char*>(stored_bytes.data())};
  const TextKeys wanted = checked_keys(offsets, bytes);
  check_size(found.size(), static_cast<std::size_t>(wanted.size()), "found");
  with_index(buckets, ids, tags, stored.size(), [&](const auto& index) {
    find_keys(index, stored, stored_bytes.size(), wanted, typed_span<std::int64_t>(found));
  });
}

void find_integer_keys(const Values& buckets, const AnyIn& ids, const In<std::int16_t>& tags, const Values& stored,
                       const Values& wanted, const Into<std::int64_t>& found) {
  check_size(found.size(), wanted.size(), "found");
  with_index(buckets, ids, tags, static_cast<std::int64_t>(stored.size()), [&](const auto& index) {
    find_keys(index, IntegerKeys{span_of(stored)}, 0, IntegerKeys{span_of(wanted)}, typed_span<std::int64_t>(found));
  });
}

}  // namespace
}  // namespace khop::bindings

void bind_key_index(nb::module_& module) {
  using nb::arg;
  using namespace khop::bindings;
  module.def("text_buckets", &text_buckets, arg("offsets").noconvert(), arg("bytes").noconvert(), arg("bits"),
             arg("bucket").noconvert(), arg("tag").noconvert());
  module.def("integer_buckets", &integer_buckets, arg("values").noconvert(), arg("bits"), arg("bucket").noconvert(),
             arg("tag").noconvert());
  module.def("find_text_keys", &find_text_keys, arg("buckets").noconvert(), arg("ids").noconvert(), arg("tags").noconvert(),
             arg("stored_offsets").noconvert(), arg("stored_bytes").noconvert(), arg("offsets").noconvert(),
             arg("bytes").noconvert(), arg("found").noconvert());
  module.def("find_integer_keys", &find_integer_keys, arg("buckets").noconvert(), arg("ids").noconvert(),
             arg("tags").noconvert(), arg("stored").noconvert(), arg("wanted").noconvert(), arg("found").noconvert());
}
