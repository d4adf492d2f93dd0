// SPDX-License-Identifier: Apache-2.0
#include "core/layer/demo_layers.h"

#include <utility>

namespace headwise {

std::vector<RoleTensor> DemoLayer::RoleTensors() const {
  std::vector<RoleTensor> views;
  for (const DemoTensor& tensor : tensors) {
    views.push_back({tensor.role, tensor.name, tensor.tensor.view()});
  }
  return views;
}

DemoLayer TwoHeadLayer() {
  DemoLayer layer;
  layer.name = "two-head";
  layer.spec.d_model = 4;
  layer.spec.heads = 2;
  layer.spec.dk = {2};
  layer.spec.orientation = Orientation::kOutIn;
  layer.spec.mask.causal = true;
  // Rows 0 and 1 make head 0, rows 2 and 3 head 1; of wo, columns.
  layer.tensors = {
      {TensorRole::kQWeight, "wq",
       FloatTensor({4, 4}, {1, 0, 0, 0,  //
                            0, 1, 0, 0,  //
                            0, 0, 1, 0,  //
                            0, 0, 0, 1})},
      {TensorRole::kKWeight, "wk",
       FloatTensor({4, 4}, {1, 0, 0, 1,   //
                            0, 1, 1, 0,   //
                            1, 0, -1, 0,  //
                            0, 1, 0, 1})},
      {TensorRole::kVWeight, "wv",
       FloatTensor({4, 4}, {2, 0, 0, 0,  //
                            0, 1, 1, 0,  //
                            0, 1, 0, 0,  //
                            0, 0, 1, 2})},
      {TensorRole::kOWeight, "wo",
       FloatTensor({4, 4}, {1, 0, 0, 1,   //
                            0, 1, 1, 0,   //
                            1, 0, -1, 0,  //
                            0, 2, 0, 1})},
  };
  layer.x = FloatTensor({3, 4}, {1, 0, 2, 0,  //
                                 0, 1, 0, 1,  //
                                 1, 1, 0, 2});
  return layer;
}

DemoLayer TwoHeadUnequalLayer() {
  DemoLayer layer;
  layer.name = "two-head-unequal";
  layer.spec.d_model = 4;
  layer.spec.heads = 2;
  layer.spec.dk = {1, 3};
  layer.spec.dv = {2, 1};
  layer.spec.orientation = Orientation::kOutIn;
  layer.spec.mask.causal = true;
  // Of wq and wk, row 0 makes head 0; of wv, rows 0 and 1; of wo, columns 0 and 1.
  layer.tensors = {
      {TensorRole::kQWeight, "wq",
       FloatTensor({4, 4}, {1, 0, 0, 1,  //
                            0, 1, 0, 0,  //
                            0, 0, 1, 0,  //
                            1, 0, 0, 0})},
      {TensorRole::kKWeight, "wk",
       FloatTensor({4, 4}, {0, 1, 0, 0,  //
                            1, 0, 0, 0,  //
                            0, 0, 1, 1,  //
                            0, 1, 0, 0})},
      {TensorRole::kVWeight, "wv",
       FloatTensor({3, 4}, {1, 0, 0, 0,  //
                            0, 0, 2, 0,  //
                            0, 1, 0, 1})},
      {TensorRole::kOWeight, "wo",
       FloatTensor({4, 3}, {1, 0, 2,  //
                            0, 1, 0,  //
                            1, 1, 0,  //
                            0, 0, 1})},
      {TensorRole::kQBias, "bq", FloatTensor({4}, {0.5f, 0, 0, -0.5f})},
      {TensorRole::kKBias, "bk", FloatTensor({4}, {0, 1, 0, 0.5f})},
      {TensorRole::kVBias, "bv", FloatTensor({3}, {1, 0, -1})},
      {TensorRole::kOBias, "bo", FloatTensor({4}, {0.5f, -0.5f, 0, 1})},
  };
  layer.x = FloatTensor({3, 4}, {1, 0, 2, 0,  //
                                 0, 1, 0, 1,  //
                                 1, 1, 0, 2});
  return layer;
}

std::vector<DemoLayer> DemoLayers() {
  std::vector<DemoLayer> layers;
  layers.push_back(TwoHeadLayer());
  layers.push_back(TwoHeadUnequalLayer());
  return layers;
}

}  // namespace headwise
