// SPDX-License-Identifier: Apache-2.0
#include "client/json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"

namespace headwise::client {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

void ClearBytes(Message* message) {
  const Reflection* reflection = message->GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const FieldDescriptor* field : fields) {
    if (field->type() == FieldDescriptor::TYPE_BYTES) {
      reflection->ClearField(message, field);
    } else if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      continue;
    } else if (field->is_repeated()) {
      for (int i = 0; i < reflection->FieldSize(*message, field); ++i) {
        ClearBytes(reflection->MutableRepeatedMessage(message, field, i));
      }
    } else {
      ClearBytes(reflection->MutableMessage(message, field));
    }
  }
}

}  // namespace

absl::StatusOr<std::string> ToJson(const Message& message) {
  const std::unique_ptr<Message> named(message.New());
  named->CopyFrom(message);
  ClearBytes(named.get());
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string json;
  const auto status = google::protobuf::util::MessageToJsonString(*named, &json, options);
  if (!status.ok()) {
    return absl::InternalError(
        absl::StrCat("answer: must have a JSON form; was ", std::string(status.message())));
  }
  json += '\n';
  return json;
}

}  // namespace headwise::client
