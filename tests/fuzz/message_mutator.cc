// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/message_mutator.h"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

namespace headwise {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// A field of a message that is there.
struct Site {
  Message* message;
  const FieldDescriptor* field;
};

// Deeper than any rule looks.
constexpr int kMaxDepth = 8;

void CollectSites(Message* message, int depth, std::vector<Site>* sites) {
  const Reflection& reflection = *message->GetReflection();
  for (int i = 0; i < message->GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* const field = message->GetDescriptor()->field(i);
    sites->push_back({message, field});
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || depth == kMaxDepth) continue;
    if (field->is_repeated()) {
      for (int j = 0; j < reflection.FieldSize(*message, field); ++j) {
        CollectSites(reflection.MutableRepeatedMessage(message, field, j), depth + 1, sites);
      }
    } else if (reflection.HasField(*message, field)) {
      CollectSites(reflection.MutableMessage(message, field), depth + 1, sites);
    }
  }
}

class Mutation {
 public:
  Mutation(std::mt19937* random, const MutateBytes& mutate_bytes)
      : random_(*random), mutate_bytes_(mutate_bytes) {}

  void Change(const Site& site) {
    if (site.field->is_repeated()) return ChangeRepeated(site);
    const Reflection& reflection = *site.message->GetReflection();
    const bool is_message = site.field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    if (reflection.HasField(*site.message, site.field) && (is_message || Below(4) == 0)) {
      reflection.ClearField(site.message, site.field);
    } else {
      Set(site, -1);
    }
  }

 private:
  uint32_t Below(uint32_t count) { return random_() % count; }

  void ChangeRepeated(const Site& site) {
    const Reflection& reflection = *site.message->GetReflection();
    const int size = reflection.FieldSize(*site.message, site.field);
    const uint32_t action = size == 0 ? 0 : Below(4);
    if (action == 0) return Set(site, size);
    if (action == 1) return reflection.RemoveLast(site.message, site.field);
    const int at = static_cast<int>(Below(static_cast<uint32_t>(size)));
    if (action == 2) {
      return reflection.SwapElements(site.message, site.field, at,
                                     static_cast<int>(Below(static_cast<uint32_t>(size))));
    }
    if (site.field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) return Set(site, at);
    Message* const element = reflection.MutableRepeatedMessage(site.message, site.field, at);
    reflection.AddMessage(site.message, site.field)->CopyFrom(*element);
  }

  // Small numbers mean most here; the rest are edges of types.
  int64_t Whole(int64_t was) {
    constexpr int64_t kEdges[] = {
        std::numeric_limits<int32_t>::max(),  std::numeric_limits<int32_t>::min(),
        std::numeric_limits<uint32_t>::max(), std::numeric_limits<int64_t>::max(),
        std::numeric_limits<int64_t>::min(),  int64_t{1} << 31};
    switch (Below(4)) {
      case 0:
        // Past the end and round again.
        return static_cast<int64_t>(static_cast<uint64_t>(was) +
                                    (Below(2) == 0 ? 1 : ~uint64_t{0}));
      case 1:
        return kEdges[Below(std::size(kEdges))];
      default:
        return static_cast<int64_t>(Below(18));
    }
  }
  double Real(double was) {
    constexpr double kEdges[] = {0.0,
                                 -0.0,
                                 1.0,
                                 0.5,
                                 -1.0,
                                 1e-300,
                                 1e300,
                                 std::numeric_limits<double>::infinity(),
                                 std::numeric_limits<double>::quiet_NaN()};
    return Below(3) == 0 ? was * 2.0 + 1.0 : kEdges[Below(std::size(kEdges))];
  }
  int Enumerator(const EnumDescriptor& type) {
    const uint32_t count = static_cast<uint32_t>(type.value_count());
    const uint32_t at = Below(count + 1);
    return at == count ? 1000 : type.value(static_cast<int>(at))->number();
  }
  std::string Text(std::string was) {
    mutate_bytes_(&was);
    return was;
  }

  // Element `at` of a repeated field, the one behind the last included; -1: the field itself.
  void Set(const Site& site, int at) {
    const Reflection& reflection = *site.message->GetReflection();
    Message* const message = site.message;
    const FieldDescriptor* const field = site.field;
    const bool add = at >= 0 && at == reflection.FieldSize(*message, field);
    // Half of what is added is as one that is there.
    const int like =
        add && at > 0 && Below(2) == 0 ? static_cast<int>(Below(static_cast<uint32_t>(at))) : -1;
    switch (field->cpp_type()) {
#define HEADWISE_SCALAR(CPPTYPE, Name, Type, Make)                                                \
  case FieldDescriptor::CPPTYPE: {                                                                \
    if (like >= 0) {                                                                              \
      return reflection.Add##Name(message, field,                                                 \
                                  reflection.GetRepeated##Name(*message, field, like));           \
    }                                                                                             \
    const Type was = at < 0 ? reflection.Get##Name(*message, field)                               \
                            : (add ? Type() : reflection.GetRepeated##Name(*message, field, at)); \
    const Type value = static_cast<Type>(Make(was));                                              \
    if (at < 0) return reflection.Set##Name(message, field, value);                               \
    if (add) return reflection.Add##Name(message, field, value);                                  \
    return reflection.SetRepeated##Name(message, field, at, value);                               \
  }
      HEADWISE_SCALAR(CPPTYPE_INT32, Int32, int32_t, Whole)
      HEADWISE_SCALAR(CPPTYPE_INT64, Int64, int64_t, Whole)
      HEADWISE_SCALAR(CPPTYPE_UINT32, UInt32, uint32_t, Whole)
      HEADWISE_SCALAR(CPPTYPE_UINT64, UInt64, uint64_t, Whole)
      HEADWISE_SCALAR(CPPTYPE_DOUBLE, Double, double, Real)
      HEADWISE_SCALAR(CPPTYPE_FLOAT, Float, float, Real)
      HEADWISE_SCALAR(CPPTYPE_BOOL, Bool, bool, !)
      HEADWISE_SCALAR(CPPTYPE_STRING, String, std::string, Text)
#undef HEADWISE_SCALAR
      case FieldDescriptor::CPPTYPE_ENUM: {
        const int value = Enumerator(*field->enum_type());
        if (at < 0) return reflection.SetEnumValue(message, field, value);
        if (add) return reflection.AddEnumValue(message, field, value);
        return reflection.SetRepeatedEnumValue(message, field, at, value);
      }
      case FieldDescriptor::CPPTYPE_MESSAGE:
        if (at < 0) {
          reflection.MutableMessage(message, field);
        } else if (add) {
          reflection.AddMessage(message, field);
        }
        return;
    }
  }

  std::mt19937& random_;
  const MutateBytes& mutate_bytes_;
};

}  // namespace

void MutateMessage(std::mt19937* random, const MutateBytes& mutate_bytes,
                   google::protobuf::Message* message) {
  std::vector<Site> sites;
  CollectSites(message, 0, &sites);
  if (sites.empty()) return;
  Mutation(random, mutate_bytes).Change(sites[(*random)() % sites.size()]);
}

}  // namespace headwise
