// SPDX-License-Identifier: Apache-2.0
#include "core/format/strict_json.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "core/format/file.h"

namespace headwise {
namespace {

using nlohmann::json;

// Builds the value and stops at the first rule broken.
class StrictBuilder : public nlohmann::json_sax<json> {
 public:
  bool null() override { return Put(nullptr); }
  bool boolean(bool value) override { return Put(value); }
  bool number_integer(number_integer_t value) override { return Put(value); }
  bool number_unsigned(number_unsigned_t value) override { return Put(value); }
  bool number_float(number_float_t value, const string_t&) override { return Put(value); }
  bool string(string_t& value) override { return Put(std::move(value)); }
  bool binary(binary_t&) override { return Fail("holds binary data"); }
  bool start_object(std::size_t) override { return Open(json::object()); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (open_.back()->contains(name)) {
      return Fail(absl::StrCat("holds the name \"", Printable(name), "\" twice"));
    }
    key_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::detail::exception&) override {
    return Fail(absl::StrCat("is no JSON at byte ", position));
  }

  const std::string& problem() const { return problem_; }
  json Take() { return std::move(root_); }

 private:
  json* Place(json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_array()) return &open_.back()->emplace_back(std::move(value));
    return &((*open_.back())[key_] = std::move(value));
  }
  bool Put(json value) {
    Place(std::move(value));
    return true;
  }
  bool Open(json empty) {
    if (open_.size() >= kMaxJsonDepth) {
      return Fail(absl::StrCat("nests deeper than ", kMaxJsonDepth));
    }
    // A parent grows only after its child is closed, so the pointers on the stack stay valid.
    open_.push_back(Place(std::move(empty)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }

  json root_;
  std::vector<json*> open_;
  std::string key_;
  std::string problem_;
};

// Puts quotes around the bare words NaN, Infinity and -Infinity that stand outside strings.
std::string QuoteNonfinite(absl::string_view text) {
  std::string out;
  out.reserve(text.size() + 16);
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (!in_string) {
      absl::string_view word;
      for (const absl::string_view candidate : {"NaN", "Infinity", "-Infinity"}) {
        if (absl::StartsWith(text.substr(i), candidate)) word = candidate;
      }
      if (!word.empty()) {
        absl::StrAppend(&out, "\"", word, "\"");
        i += word.size();
        continue;
      }
    } else if (text[i] == '\\' && i + 1 < text.size()) {
      out.append(text.data() + i, 2);
      i += 2;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    out.push_back(text[i++]);
  }
  return out;
}

}  // namespace

absl::StatusOr<json> ParseStrictJson(absl::string_view text, absl::string_view what,
                                     JsonRules rules) {
  StrictBuilder builder;
  const std::string quoted = rules.bare_nonfinite ? QuoteNonfinite(text) : std::string();
  const absl::string_view input = rules.bare_nonfinite ? absl::string_view(quoted) : text;
  if (!json::sax_parse(input.begin(), input.end(), &builder)) {
    return absl::DataLossError(absl::StrCat(what, ": ", builder.problem()));
  }
  return builder.Take();
}

}  // namespace headwise
