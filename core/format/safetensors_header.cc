// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/format/file.h"
#include "core/format/safetensors.h"

namespace headwise {
namespace {

using nlohmann::json;

constexpr uint64_t kLengthBytes = 8;

// Reads the header's JSON straight into entries: no tree is built of a text that may be hostile.
class HeaderReader : public nlohmann::json_sax<json> {
 public:
  bool start_object(std::size_t) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTop) {
      place_ = name_ == "__metadata__" ? Place::kMetadata : Place::kEntry;
      entry_ = SafetensorsEntry();
      entry_.name = name_;
      fields_ = {};
    } else {
      return Fail("an object where none belongs");
    }
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      if (!fields_.dtype || !fields_.shape || offsets_.size() != 2 || !fields_.offsets) {
        return Fail("needs dtype, shape and two data_offsets");
      }
      entry_.begin = offsets_[0];
      entry_.end = offsets_[1];
      header_.entries.push_back(std::move(entry_));
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      name_ = key;
      if (!names_.insert(key).second) return Fail("is there twice");
    } else {
      field_ = key;
      if (place_ == Place::kMetadata && header_.metadata.count(key) != 0) {
        return Fail(absl::StrCat("holds \"", Printable(key), "\" twice"));
      }
    }
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ != Place::kEntry) return Fail("an array where none belongs");
    if (field_ == "shape") {
      place_ = Place::kShape;
      return Once(&fields_.shape);
    }
    if (field_ == "data_offsets") {
      place_ = Place::kOffsets;
      offsets_.clear();
      return Once(&fields_.offsets);
    }
    return FailField();
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata) {
      header_.metadata[field_] = value;
      return true;
    }
    if (place_ != Place::kEntry || field_ != "dtype") return FailField();
    entry_.dtype = value;
    return Once(&fields_.dtype);
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Fail(absl::StrCat("shape: must be below 2^63; was ", value));
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ != Place::kOffsets) return FailField();
    offsets_.push_back(value);
    return offsets_.size() <= 2 || Fail("needs two data_offsets");
  }

  bool number_integer(number_integer_t value) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return FailField();
    return Fail(absl::StrCat(field_, ": must not be negative; was ", value));
  }
  bool number_float(number_float_t, const string_t& text) override {
    if (place_ != Place::kShape && place_ != Place::kOffsets) return FailField();
    return Fail(absl::StrCat(field_, ": must be whole; was ", Printable(text)));
  }
  bool null() override { return FailField(); }
  bool boolean(bool) override { return FailField(); }
  bool binary(binary_t&) override { return FailField(); }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return FailWhole(absl::StrCat("is no JSON at byte ", kLengthBytes + position));
  }

  const std::string& problem() const { return problem_; }
  SafetensorsHeader Take() { return std::move(header_); }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kShape, kOffsets, kEnd };
  struct Fields {
    bool dtype = false, shape = false, offsets = false;
  };

  bool Once(bool* seen) {
    if (*seen) return Fail(absl::StrCat("holds \"", Printable(field_), "\" twice"));
    *seen = true;
    return true;
  }
  bool FailField() {
    if (place_ == Place::kTop) return Fail("must be an object");
    return Fail(absl::StrCat("\"", Printable(field_), "\" is unknown or of the wrong type"));
  }
  bool Fail(absl::string_view problem) {
    if (place_ == Place::kStart || place_ == Place::kEnd) {
      return FailWhole("must be one JSON object");
    }
    if (problem_.empty()) {
      problem_ = absl::StrCat("tensor \"", Printable(name_), "\": ", problem);
    }
    return false;
  }
  bool FailWhole(absl::string_view problem) {
    if (problem_.empty()) problem_ = absl::StrCat("header: ", problem);
    return false;
  }

  Place place_ = Place::kStart;
  std::set<std::string> names_;
  std::string name_;
  std::string field_;
  SafetensorsEntry entry_;
  Fields fields_;
  std::vector<uint64_t> offsets_;
  SafetensorsHeader header_;
  std::string problem_;
};

// Bits of one element of every dtype that the format knows, also of those that we don't read.
std::optional<int64_t> FormatDTypeBits(absl::string_view dtype) {
  static constexpr std::pair<absl::string_view, int64_t> kBits[] = {
      {"F64", 64},    {"I64", 64},    {"U64", 64},    {"C64", 64},    {"F32", 32},
      {"I32", 32},    {"U32", 32},    {"BF16", 16},   {"F16", 16},    {"I16", 16},
      {"U16", 16},    {"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"F8_E4M3", 8},
      {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
  };
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return std::nullopt;
}

absl::Status TensorError(const SafetensorsEntry& entry, absl::string_view problem) {
  return absl::DataLossError(absl::StrCat("tensor \"", Printable(entry.name), "\": ", problem));
}

std::string RangeText(const SafetensorsEntry& entry) {
  return absl::StrCat("[", entry.begin, ", ", entry.end, "]");
}

// The shape's bytes must be the range's bytes. A dtype that the format doesn't know has no size.
absl::Status CheckSize(const SafetensorsEntry& entry) {
  if (entry.end < entry.begin) {
    return TensorError(entry, absl::StrCat("data_offsets: must not end before they begin; was ",
                                           RangeText(entry)));
  }
  const std::optional<int64_t> elements = NumElements(entry.shape);
  if (!elements) {
    return TensorError(entry, absl::StrCat("shape: must have at most 2^62 elements; was ",
                                           ShapeToString(entry.shape)));
  }
  const std::optional<int64_t> bits = FormatDTypeBits(entry.dtype);
  if (!bits) return absl::OkStatus();
  int64_t total_bits = 0;
  if (__builtin_mul_overflow(*elements, *bits, &total_bits) || total_bits % 8 != 0 ||
      static_cast<uint64_t>(total_bits / 8) != entry.end - entry.begin) {
    return TensorError(entry, absl::StrCat("data_offsets: must be the bytes of ", entry.dtype, " ",
                                           ShapeToString(entry.shape), "; was ",
                                           entry.end - entry.begin, " bytes"));
  }
  return absl::OkStatus();
}

// Tensors fill the data section one after the other, without hole, overlap or rest.
absl::Status CheckLayout(const SafetensorsHeader& header, uint64_t file_bytes) {
  uint64_t end = 0;
  for (const SafetensorsEntry& entry : header.entries) {
    if (absl::Status status = CheckSize(entry); !status.ok()) return status;
    if (entry.begin != end) {
      return TensorError(entry, absl::StrCat("data_offsets: must begin at ", end,
                                             entry.begin < end ? " (overlap)" : " (hole)", "; was ",
                                             RangeText(entry)));
    }
    end = entry.end;
  }
  const uint64_t data_bytes = file_bytes - header.data_begin;
  if (end == data_bytes) return absl::OkStatus();
  const std::string last =
      header.entries.empty()
          ? std::string("no tensor")
          : absl::StrCat("last tensor \"", Printable(header.entries.back().name), "\"");
  if (end > std::numeric_limits<uint64_t>::max() - header.data_begin) {
    return absl::DataLossError(absl::StrCat("file: ", last, " ends beyond 2^64"));
  }
  return absl::DataLossError(absl::StrCat("file: must have ", header.data_begin + end, " bytes (",
                                          last, " ends there); was ", file_bytes,
                                          end > data_bytes ? ", cut short" : ", bytes left over"));
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(absl::string_view head,
                                                         uint64_t file_bytes) {
  if (file_bytes < kLengthBytes || head.size() < kLengthBytes) {
    return absl::DataLossError(absl::StrCat("file: must have at least 8 bytes; was ", file_bytes));
  }
  uint64_t length = 0;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    length |= static_cast<uint64_t>(static_cast<unsigned char>(head[i])) << (8 * i);
  }
  if (length > kMaxSafetensorsHeaderBytes) {
    return absl::DataLossError(absl::StrCat("header length: must be at most ",
                                            kMaxSafetensorsHeaderBytes, " bytes; was ", length));
  }
  if (length > file_bytes - kLengthBytes || length > head.size() - kLengthBytes) {
    return absl::DataLossError(absl::StrCat("file: must have at least ", kLengthBytes + length,
                                            " bytes (8 and the header); was ", file_bytes));
  }
  const absl::string_view text = head.substr(kLengthBytes, length);
  if (text.empty() || text.front() != '{') {
    return absl::DataLossError("header: must begin with {");
  }
  HeaderReader reader;
  if (!json::sax_parse(text.begin(), text.end(), &reader)) {
    return absl::DataLossError(reader.problem());
  }
  SafetensorsHeader header = reader.Take();
  header.data_begin = kLengthBytes + length;
  std::sort(header.entries.begin(), header.entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  if (absl::Status status = CheckLayout(header, file_bytes); !status.ok()) return status;
  return header;
}

}  // namespace headwise
