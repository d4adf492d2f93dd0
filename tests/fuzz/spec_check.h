// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_TESTS_FUZZ_SPEC_CHECK_H_
#define HEADWISE_TESTS_FUZZ_SPEC_CHECK_H_

#include <string>

#include "absl/status/statusor.h"
#include "core/layer/spec.h"
#include "server/codec_layer.h"
#include "tests/fuzz/fuzz.h"

namespace headwise {

// What a server makes of a spec: a resolved one, which stays the same over the wire and when it is
// resolved again, or a refusal.
inline absl::StatusOr<LayerSpec> CheckWireSpec(const v1::LayerSpec& wire) {
  absl::StatusOr<LayerSpec> spec = DecodeSpec(wire);
  if (spec.ok()) spec = ResolveSpec(*std::move(spec));
  if (!spec.ok()) {
    CheckRefusal(spec.status());
    return spec;
  }
  v1::LayerSpec once, twice;
  EncodeSpec(*spec, &once);
  absl::StatusOr<LayerSpec> again = DecodeSpec(once);
  if (again.ok()) again = ResolveSpec(*std::move(again));
  CHECK(again.ok()) << again.status();
  EncodeSpec(*again, &twice);
  CHECK_EQ(once.SerializeAsString(), twice.SerializeAsString());
  DecodeTensorNames(wire.tensors());
  return spec;
}

}  // namespace headwise

#endif  // HEADWISE_TESTS_FUZZ_SPEC_CHECK_H_
