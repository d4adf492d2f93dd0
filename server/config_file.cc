// SPDX-License-Identifier: Apache-2.0
#include "server/config_file.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/text_format.h>

#include <algorithm>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "core/format/file.h"
#include "server/server_config.pb.h"

namespace headwise {
namespace {

namespace pb = ::google::protobuf;

// `line` and `column` count from 0, as protobuf's; negative where they aren't known.
std::string Where(absl::string_view path, int line, int column) {
  if (line < 0 || column < 0) return Printable(path);
  return absl::StrCat(Printable(path), ":", line + 1, ":", column + 1);
}

// protobuf's words, but for the fault that is the commonest: they name a type that no operator
// knows.
std::string Explain(absl::string_view message) {
  absl::string_view name = message;
  if (absl::ConsumePrefix(&name, "Message type \"headwise.ServerConfig\" has no field named \"") &&
      absl::ConsumeSuffix(&name, "\".")) {
    return absl::StrCat("must be a flag other than config, help and version, with _ for -; was ",
                        Printable(name));
  }
  return Printable(message);
}

// Keeps the first error: those after it may be its consequences.
class FirstError : public pb::io::ErrorCollector {
 public:
  explicit FirstError(absl::string_view path) : path_(path) {}

  void AddError(int line, int column, const std::string& message) override {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(
        absl::StrCat(Where(path_, line, column), ": ", Explain(message)));
  }

  const absl::Status& status() const { return status_; }

 private:
  const absl::string_view path_;
  absl::Status status_;
};

// What --flag=value would have as the value; `index` is -1 for a field that isn't repeated.
std::string ValueText(const pb::Message& message, const pb::FieldDescriptor& field, int index) {
  const pb::Reflection& values = *message.GetReflection();
  if (index >= 0) return values.GetRepeatedString(message, &field, index);
  switch (field.cpp_type()) {
    case pb::FieldDescriptor::CPPTYPE_BOOL:
      return values.GetBool(message, &field) ? "true" : "false";
    case pb::FieldDescriptor::CPPTYPE_INT64:
      return absl::StrCat(values.GetInt64(message, &field));
    default:
      return values.GetString(message, &field);
  }
}

// Where a value of a field stands. protobuf keeps one place for a list in brackets, whatever its
// length; where the number of places differs from that of values, which is whose isn't known.
pb::TextFormat::ParseLocation PlaceOf(const pb::TextFormat::ParseInfoTree& places,
                                      const pb::FieldDescriptor& field, int index, int count) {
  if (index >= 0 && (places.GetLocation(&field, count - 1).line < 0 ||
                     places.GetLocation(&field, count).line >= 0)) {
    return {};
  }
  return places.GetLocation(&field, index);
}

}  // namespace

absl::StatusOr<std::vector<ConfigSetting>> ParseConfig(absl::string_view text,
                                                       absl::string_view path) {
  ServerConfig config;
  FirstError error(path);
  pb::TextFormat::ParseInfoTree places;
  pb::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  parser.WriteLocationsTo(&places);
  // No field holds others, but the parser skips reserved ones with all that they hold.
  parser.SetRecursionLimit(8);
  pb::io::ArrayInputStream stream(text.data(), static_cast<int>(text.size()));
  if (!parser.Parse(&stream, &config)) return error.status();

  std::vector<ConfigSetting> settings;
  std::vector<const pb::FieldDescriptor*> fields;
  config.GetReflection()->ListFields(config, &fields);
  for (const pb::FieldDescriptor* field : fields) {
    std::string flag = field->name();
    std::replace(flag.begin(), flag.end(), '_', '-');
    const int count = field->is_repeated() ? config.GetReflection()->FieldSize(config, field) : 1;
    for (int i = 0; i < count; ++i) {
      const int index = field->is_repeated() ? i : -1;
      const auto place = PlaceOf(places, *field, index, count);
      settings.push_back({.flag = flag,
                          .value = ValueText(config, *field, index),
                          .where = Where(path, place.line, place.column)});
    }
  }
  return settings;
}

absl::StatusOr<std::vector<ConfigSetting>> ReadConfig(const std::string& path) {
  const absl::StatusOr<UniqueFd> file = OpenForRead(path);
  if (!file.ok()) return file.status();
  const absl::StatusOr<std::string> text = ReadAll(*file, path, kMaxConfigBytes);
  if (!text.ok()) return text.status();
  return ParseConfig(*text, path);
}

}  // namespace headwise
