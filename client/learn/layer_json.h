// SPDX-License-Identifier: Apache-2.0
// A tiny layer and its input, typed as JSON.
#ifndef HEADWISE_CLIENT_LEARN_LAYER_JSON_H_
#define HEADWISE_CLIENT_LEARN_LAYER_JSON_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "core/base/tensor.h"
#include "headwise/v1/layer.pb.h"
#include "headwise/v1/tensor.pb.h"

namespace headwise::client {

struct TypedLayer {
  v1::LayerSpec spec;  // `tensors` names the weights by their roles
  std::map<std::string, OwnedTensor> weights;
  v1::AttentionInput input;
};

// {"spec": LayerSpec without `tensors` (d_model defaults to x's width),
//  "weights": {"q": [[…], …], "k": …, "v": …, "o": …, "q_bias": […], …}, the fields of TensorNames,
//  "x": [[…], …] (or one such list a sequence), "lengths": […], "memory": [[…], …]}, the last two
// optional. INVALID_ARGUMENT naming the place: unknown keys, ragged lists, what is no number;
// DATA_LOSS: no JSON.
absl::StatusOr<TypedLayer> ParseTypedLayer(absl::string_view json);

}  // namespace headwise::client

#endif  // HEADWISE_CLIENT_LEARN_LAYER_JSON_H_
