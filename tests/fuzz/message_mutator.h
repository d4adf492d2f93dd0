// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_TESTS_FUZZ_MESSAGE_MUTATOR_H_
#define HEADWISE_TESTS_FUZZ_MESSAGE_MUTATOR_H_

#include <google/protobuf/message.h>

#include <functional>
#include <random>
#include <string>

namespace headwise {

// Changes a string of any bytes, for example by libFuzzer's own mutations.
using MutateBytes = std::function<void(std::string*)>;

// Changes one field somewhere in `message`, by reflection: sets, clears or alters it, adds, drops
// or doubles an element. Depends on `random` and `mutate_bytes` alone.
void MutateMessage(std::mt19937* random, const MutateBytes& mutate_bytes,
                   google::protobuf::Message* message);

}  // namespace headwise

#endif  // HEADWISE_TESTS_FUZZ_MESSAGE_MUTATOR_H_
