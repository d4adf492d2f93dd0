// SPDX-License-Identifier: Apache-2.0
#include "core/format/npy.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "core/format/file.h"

namespace headwise {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kMaxHeaderBytes = 1 << 20;

struct NpyHeader {
  std::string descr;
  bool fortran_order = false;
  Shape shape;
};

// How one kind of stored element becomes one of ours.
struct Conversion {
  char kind;          // NumPy's letter
  size_t item_bytes;  // in the file
  DType dtype;        // here
  bool big_endian = false;
};

constexpr Conversion kConversions[] = {
    {'f', 2, DType::kF16}, {'f', 4, DType::kF32}, {'f', 8, DType::kF64}, {'b', 1, DType::kBool},
    {'u', 1, DType::kU8},  {'i', 1, DType::kI32}, {'i', 2, DType::kI32}, {'u', 2, DType::kI32},
    {'i', 4, DType::kI32}, {'u', 4, DType::kI64}, {'i', 8, DType::kI64}, {'u', 8, DType::kI64},
};

// Takes a Python literal apart, left to right.
class LiteralScanner {
 public:
  explicit LiteralScanner(absl::string_view text) : rest_(text) {}

  bool Eat(absl::string_view word) {
    SkipSpace();
    return absl::ConsumePrefix(&rest_, word);
  }
  bool AtEnd() {
    SkipSpace();
    return rest_.empty();
  }
  std::optional<std::string> String() {
    SkipSpace();
    if (rest_.empty() || (rest_[0] != '\'' && rest_[0] != '"')) return std::nullopt;
    const size_t end = rest_.find(rest_[0], 1);
    if (end == absl::string_view::npos) return std::nullopt;
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    return text;
  }
  std::optional<int64_t> Int() {
    SkipSpace();
    size_t digits = 0;
    while (digits < rest_.size() && absl::ascii_isdigit(rest_[digits])) ++digits;
    int64_t value = 0;
    if (!absl::SimpleAtoi(rest_.substr(0, digits), &value)) return std::nullopt;
    rest_.remove_prefix(digits);
    absl::ConsumePrefix(&rest_, "L");  // Python 2 wrote long integers so
    return value;
  }

 private:
  void SkipSpace() { rest_ = absl::StripLeadingAsciiWhitespace(rest_); }
  absl::string_view rest_;
};

absl::Status Malformed(absl::string_view problem) {
  return absl::DataLossError(absl::StrCat("npy header: ", problem));
}

std::optional<bool> ScanBool(LiteralScanner* scanner) {
  if (scanner->Eat("True")) return true;
  if (scanner->Eat("False")) return false;
  return std::nullopt;
}

std::optional<Shape> ScanShape(LiteralScanner* scanner) {
  if (!scanner->Eat("(")) return std::nullopt;
  Shape shape;
  while (!scanner->Eat(")")) {
    const std::optional<int64_t> axis = scanner->Int();
    if (!axis) return std::nullopt;
    shape.push_back(*axis);
    if (!scanner->Eat(",")) {
      if (!scanner->Eat(")")) return std::nullopt;
      break;
    }
  }
  return shape;
}

// {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
absl::StatusOr<NpyHeader> ParseDictionary(absl::string_view text) {
  LiteralScanner scanner(text);
  std::optional<std::string> descr;
  std::optional<bool> fortran_order;
  std::optional<Shape> shape;
  if (!scanner.Eat("{")) return Malformed("must be a dictionary");
  while (!scanner.Eat("}")) {
    const std::optional<std::string> key = scanner.String();
    if (!key || !scanner.Eat(":")) return Malformed("must be a dictionary");
    bool read = false;
    if (*key == "descr" && !descr) {
      if (scanner.Eat("[")) {
        return absl::UnimplementedError("npy dtype: must be a plain number; was a structure");
      }
      read = (descr = scanner.String()).has_value();
    } else if (*key == "fortran_order" && !fortran_order) {
      read = (fortran_order = ScanBool(&scanner)).has_value();
    } else if (*key == "shape" && !shape) {
      read = (shape = ScanShape(&scanner)).has_value();
    }
    if (!read) return Malformed(absl::StrCat("\"", Printable(*key), "\" can't be read"));
    if (!scanner.Eat(",")) {
      if (!scanner.Eat("}")) return Malformed("must be a dictionary");
      break;
    }
  }
  if (!scanner.AtEnd() || !descr || !fortran_order || !shape) {
    return Malformed("must hold descr, fortran_order and shape and nothing else");
  }
  return NpyHeader{*std::move(descr), *fortran_order, *std::move(shape)};
}

absl::StatusOr<Conversion> FindConversion(absl::string_view descr) {
  absl::string_view rest = descr;
  const bool big_endian = absl::ConsumePrefix(&rest, ">");
  if (!big_endian && !rest.empty() && absl::StrContains("<|=", rest[0])) rest.remove_prefix(1);
  size_t item_bytes = 0;
  if (!rest.empty() && absl::SimpleAtoi(rest.substr(1), &item_bytes)) {
    for (Conversion row : kConversions) {
      if (row.kind != rest[0] || row.item_bytes != item_bytes) continue;
      row.big_endian = big_endian;
      return row;
    }
  }
  return absl::UnimplementedError(
      absl::StrCat("npy dtype: must be f2, f4, f8, an integer or bool; was ", Printable(descr)));
}

// Row-major positions of an array whose first axis varies fastest.
class FortranOrder {
 public:
  explicit FortranOrder(const Shape& shape)
      : shape_(shape), index_(shape.size(), 0), strides_(shape.size(), 1) {
    for (size_t axis = 1; axis < shape.size(); ++axis) {
      strides_[axis] = strides_[axis - 1] * shape[axis - 1];
    }
  }
  int64_t position() const { return position_; }
  void Next() {
    for (size_t axis = shape_.size(); axis-- > 0;) {
      position_ += strides_[axis];
      if (++index_[axis] < shape_[axis]) return;
      position_ -= strides_[axis] * shape_[axis];
      index_[axis] = 0;
    }
  }

 private:
  const Shape& shape_;
  Shape index_;
  Shape strides_;
  int64_t position_ = 0;
};

uint64_t LoadItem(const uint8_t* item, const Conversion& conversion) {
  uint64_t value = 0;
  for (size_t i = 0; i < conversion.item_bytes; ++i) {
    const size_t at = conversion.big_endian ? i : conversion.item_bytes - 1 - i;
    value = (value << 8) | item[at];
  }
  if (conversion.kind == 'i') {  // extend the sign
    const unsigned unused = 64 - 8 * static_cast<unsigned>(conversion.item_bytes);
    value = static_cast<uint64_t>(static_cast<int64_t>(value << unused) >> unused);
  }
  return value;
}

absl::StatusOr<OwnedTensor> Convert(const NpyHeader& header, const Conversion& conversion,
                                    std::vector<uint8_t> raw) {
  OwnedTensor tensor{conversion.dtype, header.shape, {}};
  const size_t out_bytes = DTypeBytes(conversion.dtype);
  const bool fortran = header.fortran_order && header.shape.size() > 1;
  if (!fortran && !conversion.big_endian && out_bytes == conversion.item_bytes &&
      (conversion.kind != 'u' || out_bytes < 8)) {
    tensor.data = std::move(raw);
    return tensor;
  }
  const size_t count = raw.size() / conversion.item_bytes;
  tensor.data.resize(count * out_bytes);
  FortranOrder order(header.shape);
  for (size_t i = 0; i < count; ++i) {
    const size_t from = fortran ? static_cast<size_t>(order.position()) : i;
    if (fortran) order.Next();
    const uint64_t value = LoadItem(raw.data() + from * conversion.item_bytes, conversion);
    if (conversion.kind == 'u' &&
        value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return absl::DataLossError(absl::StrCat("npy value: must be at most 2^63 - 1; was ", value));
    }
    for (size_t byte = 0; byte < out_bytes; ++byte) {
      tensor.data[i * out_bytes + byte] = static_cast<uint8_t>(value >> (8 * byte));
    }
  }
  return tensor;
}

// Bytes of the array; DATA_LOSS unless the file ends where the array ends.
absl::StatusOr<size_t> CheckSize(const NpyHeader& header, const Conversion& conversion,
                                 uint64_t data_begin, uint64_t file_bytes) {
  const std::optional<int64_t> elements = NumElements(header.shape);
  uint64_t bytes = 0;
  if (!elements ||
      __builtin_mul_overflow(static_cast<uint64_t>(*elements), conversion.item_bytes, &bytes)) {
    return Malformed(absl::StrCat("shape: is too large; was ", ShapeToString(header.shape)));
  }
  if (bytes != file_bytes - data_begin) {
    return absl::DataLossError(
        absl::StrCat("npy data: must be ", bytes, " bytes (", Printable(header.descr), " ",
                     ShapeToString(header.shape), "); was ", file_bytes - data_begin));
  }
  return bytes;
}

// Where the bytes come from: a file or a text.
class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t bytes() const = 0;
  virtual absl::Status Read(uint64_t offset, void* out, size_t bytes) const = 0;
};

class TextSource : public Source {
 public:
  explicit TextSource(absl::string_view text) : text_(text) {}
  uint64_t bytes() const override { return text_.size(); }
  absl::Status Read(uint64_t offset, void* out, size_t bytes) const override {
    if (bytes > 0) std::memcpy(out, text_.data() + offset, bytes);
    return absl::OkStatus();
  }

 private:
  const absl::string_view text_;
};

class FileSource : public Source {
 public:
  FileSource(const UniqueFd& fd, const std::string& path, uint64_t bytes)
      : fd_(fd), path_(path), bytes_(bytes) {}
  uint64_t bytes() const override { return bytes_; }
  absl::Status Read(uint64_t offset, void* out, size_t bytes) const override {
    return ReadAt(fd_, path_, offset, out, bytes);
  }

 private:
  const UniqueFd& fd_;
  const std::string& path_;
  const uint64_t bytes_;
};

struct HeaderText {
  std::string text;
  uint64_t data_begin = 0;
};

absl::StatusOr<HeaderText> ReadHeaderText(const Source& source) {
  // Magic, two bytes of version, and the header's length in 2 bytes (version 1) or 4.
  std::string start(std::min<uint64_t>(12, source.bytes()), '\0');
  if (absl::Status status = source.Read(0, start.data(), start.size()); !status.ok()) return status;
  if (start.size() < 10 || !absl::StartsWith(start, kMagic)) {
    return Malformed("must begin with \\x93NUMPY");
  }
  const auto byte = [&start](size_t i) { return static_cast<unsigned char>(start[i]); };
  const size_t length_bytes = byte(6) == 1 ? 2 : 4;
  const uint64_t begin = 8 + length_bytes;
  if (byte(6) < 1 || byte(6) > 3 || start.size() < begin) {
    return Malformed(absl::StrCat("version must be 1, 2 or 3; was ", byte(6)));
  }
  size_t length = 0;
  for (size_t i = length_bytes; i-- > 0;) length = (length << 8) | byte(8 + i);
  if (length > kMaxHeaderBytes || length > source.bytes() - begin) {
    return Malformed(
        absl::StrCat("length must fit the file and ", kMaxHeaderBytes, " bytes; was ", length));
  }
  HeaderText header{std::string(length, '\0'), begin + length};
  if (absl::Status status = source.Read(begin, header.text.data(), length); !status.ok()) {
    return status;
  }
  return header;
}

absl::StatusOr<OwnedTensor> ReadFrom(const Source& source) {
  const absl::StatusOr<HeaderText> text = ReadHeaderText(source);
  if (!text.ok()) return text.status();
  const absl::StatusOr<NpyHeader> header = ParseDictionary(text->text);
  if (!header.ok()) return header.status();
  const absl::StatusOr<Conversion> conversion = FindConversion(header->descr);
  if (!conversion.ok()) return conversion.status();
  const absl::StatusOr<size_t> bytes =
      CheckSize(*header, *conversion, text->data_begin, source.bytes());
  if (!bytes.ok()) return bytes.status();
  std::vector<uint8_t> raw(*bytes);
  if (absl::Status status = source.Read(text->data_begin, raw.data(), raw.size()); !status.ok()) {
    return status;
  }
  return Convert(*header, *conversion, std::move(raw));
}

}  // namespace

absl::StatusOr<OwnedTensor> ParseNpy(absl::string_view bytes) {
  return ReadFrom(TextSource(bytes));
}

absl::StatusOr<OwnedTensor> ReadNpy(const std::string& path) {
  const absl::StatusOr<UniqueFd> fd = OpenForRead(path);
  if (!fd.ok()) return fd.status();
  const absl::StatusOr<uint64_t> bytes = RegularFileBytes(*fd, path);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<OwnedTensor> tensor = ReadFrom(FileSource(*fd, path, *bytes));
  if (!tensor.ok()) {
    return absl::Status(tensor.status().code(),
                        absl::StrCat(Printable(path), ": ", tensor.status().message()));
  }
  return tensor;
}

}  // namespace headwise
