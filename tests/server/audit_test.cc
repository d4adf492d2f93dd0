// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "core/layer/demo_layers.h"
#include "server/codec_audit.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

class AuditRpc : public ServerFixture {
 protected:
  void ExpectRefused(const v1::AuditRequest& request, grpc::StatusCode code, const char* text) {
    grpc::ClientContext context;
    const Streamed<v1::AuditResponse> streamed = ReadAll(stub_->Audit(&context, request).get());
    EXPECT_EQ(streamed.status.error_code(), code) << streamed.status.error_message();
    EXPECT_THAT(streamed.status.error_message(), HasSubstr(text));
    for (const v1::AuditResponse& message : streamed.messages) {
      EXPECT_TRUE(message.has_progress());
    }
  }
  static v1::AuditRequest Request() {
    v1::AuditRequest request;
    request.set_layer("toy");
    *request.mutable_input()->mutable_x() = Rows(3);
    return request;
  }
};

TEST_F(AuditRpc, RefusalsNameTheField) {
  StartReady();
  v1::AuditRequest request = Request();
  request.set_layer("none");
  ExpectRefused(request, grpc::StatusCode::NOT_FOUND, "none");
  request = Request();
  request.set_expected_version(9);
  ExpectRefused(request, grpc::StatusCode::FAILED_PRECONDITION, "expected_version");
  request = Request();
  request.clear_input();
  *request.mutable_theirs()->mutable_y() = Rows(3);
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "input: must be given");
  request = Request();
  request.mutable_ablation()->add_interventions();
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "ablation: must go with theirs");
  request = Request();
  request.mutable_input()->mutable_x()->clear_shape();
  ExpectRefused(request, grpc::StatusCode::INVALID_ARGUMENT, "x.data: ");
  const DemoLayer demo = TwoHeadLayer();
  LoadOptions options;
  options.name = demo.name;
  ASSERT_TRUE(engine_.LoadLayer(options, demo.spec, demo.RoleTensors()).ok());
  request = Request();
  request.set_layer(demo.name);
  *request.mutable_input()->mutable_x() = Rows(9000);
  ExpectRefused(request, grpc::StatusCode::RESOURCE_EXHAUSTED, "tokens: at most 8192");
}

class AuditCodec : public ::testing::Test {
 protected:
  AuditCodec() {
    LayerSpec spec;
    spec.d_model = 4;
    spec.heads = 2;
    spec.orientation = Orientation::kOutIn;
    spec_ = *ResolveSpec(spec);
    auto input = std::make_shared<ReferenceInput>();
    input->lengths = input->memory_lengths = {1, 2};
    input->positions = input->memory_positions = {0, 0, 1};
    input->x = input->memory = std::vector<double>(12, 1.0);
    right_ = RightCase(spec_, std::make_shared<LayerMatrices>(), input);
  }
  static v1::Tensor Floats(uint32_t count) {
    v1::Tensor tensor;
    tensor.set_dtype(v1::F32);
    tensor.add_shape(count);
    tensor.set_data(std::string(count * 4, '\0'));
    return tensor;
  }
  void ExpectWrong(const v1::Theirs& theirs, const char* text) {
    const auto decoded = DecodeTheirs(spec_, *right_.input, theirs);
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(text));
  }

  LayerSpec spec_;
  AuditCase right_;
};

TEST_F(AuditCodec, TheirTensorsHaveTheLayersSizes) {
  v1::Theirs theirs;
  ExpectWrong(theirs, "theirs.y: must be given");
  *theirs.mutable_y() = Floats(11);
  ExpectWrong(theirs, "theirs.y: must have 12 elements; was 11");
  *theirs.mutable_y() = Floats(12);
  ASSERT_TRUE(DecodeTheirs(spec_, *right_.input, theirs).ok());
  *theirs.mutable_k() = Floats(1);
  ExpectWrong(theirs, "theirs.k: must have 12 elements; was 1");
  theirs.clear_k();
  *theirs.add_p() = Floats(2);
  ExpectWrong(theirs, "theirs.p: must be one tensor a sequence, 2; was 1");
  *theirs.add_p() = Floats(7);
  ExpectWrong(theirs, "theirs.p.1: must have 8 elements; was 7");
  *theirs.mutable_p(1) = Floats(8);
  EXPECT_TRUE(DecodeTheirs(spec_, *right_.input, theirs).ok());
}

TEST_F(AuditCodec, TheStatedDTypeIsTheTensorsOwnUnlessSaid) {
  v1::Theirs theirs;
  *theirs.mutable_y() = Floats(12);
  EXPECT_EQ(*DecodeStatedDType(theirs), DType::kF32);
  theirs.mutable_y()->set_dtype(v1::F16);
  EXPECT_EQ(*DecodeStatedDType(theirs), DType::kF16);
  theirs.set_stated_dtype(v1::BF16);
  EXPECT_EQ(*DecodeStatedDType(theirs), DType::kBF16);
  theirs.set_stated_dtype(v1::I64);
  EXPECT_EQ(DecodeStatedDType(theirs).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(AuditCodec, AblationsBecomeGates) {
  v1::Ablation ablation;
  v1::Intervention* one = ablation.add_interventions();
  one->set_kind(v1::Intervention::ZERO);
  one->add_heads(1);
  AuditCase c = right_;
  ASSERT_TRUE(DecodeAuditAblation(ablation, &c).ok());
  EXPECT_EQ(c.gates, (std::vector<double>{1, 0, 1, 0, 1, 0}));
  EXPECT_EQ(c.ablated, (std::vector<int64_t>{1}));
  one->add_heads(7);
  EXPECT_EQ(DecodeAuditAblation(ablation, &c).code(), absl::StatusCode::kInvalidArgument);
  one->clear_heads();
  one->set_kind(v1::Intervention::MEAN);
  EXPECT_EQ(DecodeAuditAblation(ablation, &c).code(), absl::StatusCode::kUnimplemented);
  one->set_kind(v1::Intervention::SCALE);
  one->set_token_begin(1);
  EXPECT_EQ(DecodeAuditAblation(ablation, &c).code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace headwise
