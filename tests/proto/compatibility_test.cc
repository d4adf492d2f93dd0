// SPDX-License-Identifier: Apache-2.0
// headwise.v1 only ever gains: whatever the released descriptors (released.binpb, see
// CONTRIBUTING.md) have is still there, unchanged.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "headwise/v1/headwise.pb.h"

namespace headwise {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using google::protobuf::FileDescriptorSet;
using google::protobuf::MethodDescriptor;
using google::protobuf::ServiceDescriptor;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// What `now` lacks or has changed of `released`.
class Comparison {
 public:
  explicit Comparison(const DescriptorPool* now) : now_(*now) {}

  const std::vector<std::string>& Broken() const { return broken_; }

  void File(const FileDescriptor& released) {
    for (int i = 0; i < released.message_type_count(); ++i) Message(*released.message_type(i));
    for (int i = 0; i < released.enum_type_count(); ++i) Enum(*released.enum_type(i));
    for (int i = 0; i < released.service_count(); ++i) Service(*released.service(i));
  }

 private:
  void Message(const Descriptor& released) {
    const Descriptor* message = now_.FindMessageTypeByName(released.full_name());
    if (message == nullptr) return Gone(released.full_name());
    for (int i = 0; i < released.field_count(); ++i) Field(*released.field(i), *message);
    for (int i = 0; i < released.nested_type_count(); ++i) Message(*released.nested_type(i));
    for (int i = 0; i < released.enum_type_count(); ++i) Enum(*released.enum_type(i));
  }

  void Field(const FieldDescriptor& released, const Descriptor& message) {
    const FieldDescriptor* field = message.FindFieldByName(released.name());
    if (field == nullptr) return Gone(released.full_name());
    Expect(released.full_name(), "number", released.number(), field->number());
    Expect(released.full_name(), "type", released.type(), field->type());
    Expect(released.full_name(), "label", released.label(), field->label());
    Expect(released.full_name(), "presence", released.has_presence(), field->has_presence());
    Expect(released.full_name(), "type's name", TypeName(released), TypeName(*field));
    Expect(released.full_name(), "oneof", OneofName(released), OneofName(*field));
    Expect(released.full_name(), "JSON name", released.json_name(), field->json_name());
  }

  void Enum(const EnumDescriptor& released) {
    const EnumDescriptor* type = now_.FindEnumTypeByName(released.full_name());
    if (type == nullptr) return Gone(released.full_name());
    for (int i = 0; i < released.value_count(); ++i) {
      const auto* value = type->FindValueByName(released.value(i)->name());
      if (value == nullptr) {
        Gone(released.value(i)->full_name());
      } else {
        Expect(value->full_name(), "number", released.value(i)->number(), value->number());
      }
    }
  }

  void Service(const ServiceDescriptor& released) {
    const ServiceDescriptor* service = now_.FindServiceByName(released.full_name());
    if (service == nullptr) return Gone(released.full_name());
    for (int i = 0; i < released.method_count(); ++i) {
      const MethodDescriptor& was = *released.method(i);
      const MethodDescriptor* is = service->FindMethodByName(was.name());
      if (is == nullptr) {
        Gone(was.full_name());
        continue;
      }
      Expect(was.full_name(), "request", was.input_type()->full_name(),
             is->input_type()->full_name());
      Expect(was.full_name(), "response", was.output_type()->full_name(),
             is->output_type()->full_name());
      Expect(was.full_name(), "client streaming", was.client_streaming(), is->client_streaming());
      Expect(was.full_name(), "server streaming", was.server_streaming(), is->server_streaming());
    }
  }

  static std::string TypeName(const FieldDescriptor& field) {
    if (field.message_type() != nullptr) return field.message_type()->full_name();
    return field.enum_type() == nullptr ? "" : field.enum_type()->full_name();
  }
  static std::string OneofName(const FieldDescriptor& field) {
    return field.real_containing_oneof() == nullptr ? "" : field.real_containing_oneof()->name();
  }

  template <typename T>
  void Expect(const std::string& name, const char* what, const T& was, const T& is) {
    if (was != is) broken_.push_back(absl::StrCat(name, ": ", what, " was ", was, ", is ", is));
  }
  void Gone(const std::string& name) { broken_.push_back(name + ": is gone"); }

  const DescriptorPool& now_;
  std::vector<std::string> broken_;
};

FileDescriptorSet Released() {
  std::ifstream file(HEADWISE_RELEASED_DESCRIPTORS, std::ios::binary);
  FileDescriptorSet set;
  EXPECT_TRUE(set.ParseFromIstream(&file)) << HEADWISE_RELEASED_DESCRIPTORS;
  EXPECT_GT(set.file_size(), 0);
  return set;
}

std::vector<std::string> BrokenSince(const FileDescriptorSet& released) {
  headwise::v1::ForwardRequest::descriptor();  // links the generated files in
  DescriptorPool pool;
  Comparison comparison(DescriptorPool::generated_pool());
  for (const auto& file : released.file()) {
    const FileDescriptor* built = pool.BuildFile(file);
    if (built == nullptr) return {file.name() + ": is no valid file"};
    comparison.File(*built);
  }
  return comparison.Broken();
}

TEST(Proto, OnlyGainsFieldsSinceTheRelease) { EXPECT_THAT(BrokenSince(Released()), IsEmpty()); }

// The comparison sees each kind of break: the "release" is given what today's files don't have.
TEST(Proto, TheComparisonFindsPlantedBreaks) {
  const FileDescriptorSet released = Released();
  int tensor = -1;
  int service = -1;
  for (int i = 0; i < released.file_size(); ++i) {
    if (released.file(i).name() == "headwise/v1/tensor.proto") tensor = i;
    if (released.file(i).name() == "headwise/v1/headwise.proto") service = i;
  }
  ASSERT_GE(tensor, 0);
  ASSERT_GE(service, 0);

  FileDescriptorSet planted = released;
  auto* field = planted.mutable_file(tensor)->mutable_message_type(0)->mutable_field(1);
  const std::string name = field->name();
  field->set_number(77);
  EXPECT_THAT(BrokenSince(planted), Contains(HasSubstr(name + ": number was 77")));

  planted = released;
  planted.mutable_file(tensor)->mutable_message_type(0)->mutable_field(1)->set_name("renamed");
  EXPECT_THAT(BrokenSince(planted), Contains(HasSubstr("renamed: is gone")));

  planted = released;
  planted.mutable_file(tensor)->mutable_enum_type(0)->mutable_value(2)->set_number(55);
  EXPECT_THAT(BrokenSince(planted), Contains(HasSubstr("number was 55")));

  planted = released;
  planted.mutable_file(service)->mutable_service(0)->mutable_method(0)->set_server_streaming(true);
  EXPECT_THAT(BrokenSince(planted), Contains(HasSubstr("server streaming")));
}

}  // namespace
}  // namespace headwise
