// SPDX-License-Identifier: Apache-2.0
#include "server/upload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "absl/crc/crc32c.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::HasSubstr;

// D 2, one head: wq, wk, wv, wo, each [2, 2] F32.
v1::UploadHeader Header() {
  v1::UploadHeader header;
  header.set_name("own");
  v1::LayerSpec* spec = header.mutable_spec();
  spec->set_d_model(2);
  spec->set_heads(1);
  spec->set_orientation(v1::OUT_IN);
  spec->mutable_tensors()->set_q("wq");
  spec->mutable_tensors()->set_k("wk");
  spec->mutable_tensors()->set_v("wv");
  spec->mutable_tensors()->set_o("wo");
  for (const char* name : {"wq", "wk", "wv", "wo"}) {
    v1::StoredTensor* tensor = header.add_tensors();
    tensor->set_name(name);
    tensor->set_dtype("F32");
    tensor->add_shape(2);
    tensor->add_shape(2);
  }
  header.set_total_bytes(64);
  return header;
}

v1::UploadChunk Chunk(uint32_t tensor, int64_t offset, size_t bytes) {
  v1::UploadChunk chunk;
  chunk.set_tensor(tensor);
  chunk.set_offset(offset);
  chunk.set_data(std::string(bytes, '\0'));
  chunk.set_crc32c(static_cast<uint32_t>(absl::ComputeCrc32c(chunk.data())));
  return chunk;
}

constexpr int64_t kNoLimit = int64_t{1} << 40;

TEST(Upload, PutsChunksTogether) {
  Upload upload;
  ASSERT_TRUE(upload.Begin(Header(), kNoLimit).ok());
  EXPECT_EQ(upload.total_bytes(), 64);
  ASSERT_TRUE(upload.Add(Chunk(0, 0, 10)).ok());
  ASSERT_TRUE(upload.Add(Chunk(0, 10, 6)).ok());
  for (uint32_t i = 1; i < 4; ++i) ASSERT_TRUE(upload.Add(Chunk(i, 0, 16)).ok());
  const absl::StatusOr<UploadLoad> load = upload.Finish();
  ASSERT_TRUE(load.ok()) << load.status();
  ASSERT_EQ(load->uses.size(), 4u);
  ASSERT_EQ(load->tensors.size(), 4u);
  EXPECT_EQ(load->tensors[0].tensor.data.size(), 16u);
  EXPECT_EQ(load->options.source.family, "spec");
}

TEST(Upload, RefusesBrokenHeaders) {
  struct Case {
    std::function<void(v1::UploadHeader*)> spoil;
    absl::StatusCode code;
    const char* message;
  };
  const std::vector<Case> cases = {
      {[](auto* h) { h->set_total_bytes(63); }, absl::StatusCode::kInvalidArgument, "total_bytes"},
      {[](auto* h) { h->clear_description(); }, absl::StatusCode::kInvalidArgument, "description"},
      {[](auto* h) { h->clear_tensors(); }, absl::StatusCode::kInvalidArgument, "tensors"},
      {[](auto* h) { h->mutable_tensors(1)->set_name("wq"); }, absl::StatusCode::kInvalidArgument,
       "wq twice"},
      {[](auto* h) { h->mutable_tensors(3)->set_name("w0"); }, absl::StatusCode::kNotFound,
       "was without wo"},
      {[](auto* h) { h->mutable_tensors(0)->set_dtype("F8_E4M3"); },
       absl::StatusCode::kUnimplemented, "F8_E4M3"},
      {[](auto* h) {
         for (int i = 0; i < 3; ++i) h->mutable_tensors(0)->add_shape(0xffffffffu);
       },
       absl::StatusCode::kInvalidArgument, "tensors.wq"},
      {[](auto* h) { h->set_dtype(v1::F64); }, absl::StatusCode::kInvalidArgument, "dtype"},
      {[](auto* h) { h->mutable_spec()->set_orientation(v1::ORIENTATION_UNSPECIFIED); },
       absl::StatusCode::kInvalidArgument, "orientation"},
      {[](auto* h) {
         h->mutable_checkpoint()->set_config_json("{");
         h->mutable_checkpoint()->set_layer("0");
       },
       absl::StatusCode::kDataLoss, "config.json"},
  };
  for (const Case& each : cases) {
    v1::UploadHeader header = Header();
    each.spoil(&header);
    const absl::Status status = Upload().Begin(header, kNoLimit);
    EXPECT_EQ(status.code(), each.code) << each.message << ": " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(each.message));
  }
}

TEST(Upload, TheSizeIsRefusedBeforeAnyByte) {
  const absl::Status status = Upload().Begin(Header(), 63);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--max-upload-bytes"));
}

TEST(Upload, RefusesBrokenChunks) {
  v1::UploadChunk flipped = Chunk(0, 0, 8);
  (*flipped.mutable_data())[3] = 1;
  for (const auto& [chunk, message] : std::vector<std::pair<v1::UploadChunk, const char*>>{
           {flipped, "chunk.crc32c"},
           {Chunk(0, 4, 8), "tensor 0 offset 0; was tensor 0 offset 4"},
           {Chunk(1, 0, 8), "was tensor 1 offset 0"},
           {Chunk(0, -1, 8), "offset -1"},
           {Chunk(0, 0, 17), "chunk.data"},
           {Chunk(0, 0, 0), "chunk.data"},
           {Chunk(0, 0, (size_t{4} << 20) + 1), "chunk.data"}}) {
    Upload upload;
    ASSERT_TRUE(upload.Begin(Header(), kNoLimit).ok());
    const absl::Status status = upload.Add(chunk);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(Upload, OrderOfMessages) {
  Upload upload;
  EXPECT_EQ(upload.Add(Chunk(0, 0, 8)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(upload.Finish().status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(upload.Begin(Header(), kNoLimit).ok());
  EXPECT_EQ(upload.Begin(Header(), kNoLimit).code(), absl::StatusCode::kInvalidArgument);
  for (uint32_t i = 0; i < 3; ++i) ASSERT_TRUE(upload.Add(Chunk(i, 0, 16)).ok());
  const absl::Status early = upload.Finish().status();
  EXPECT_THAT(std::string(early.message()), HasSubstr("64 bytes are here; was the stream's end"));
  ASSERT_TRUE(upload.Add(Chunk(3, 0, 16)).ok());
  EXPECT_EQ(upload.Add(Chunk(3, 16, 1)).code(), absl::StatusCode::kInvalidArgument);
}

class UploadRpc : public ServerFixture {
 protected:
  // Sends what `send` writes; the answer goes to response_.
  grpc::Status Send(const std::function<void(grpc::ClientWriter<v1::UploadLayerRequest>*)>& send) {
    grpc::ClientContext context;
    const auto writer = stub_->UploadLayer(&context, &response_);
    send(writer.get());
    writer->WritesDone();
    return writer->Finish();
  }

  static void WriteHeader(grpc::ClientWriter<v1::UploadLayerRequest>* writer,
                          const v1::UploadHeader& header = Header()) {
    v1::UploadLayerRequest message;
    *message.mutable_header() = header;
    writer->Write(message);
  }
  static void WriteChunks(grpc::ClientWriter<v1::UploadLayerRequest>* writer, uint32_t count) {
    v1::UploadLayerRequest message;
    for (uint32_t i = 0; i < count; ++i) {
      *message.mutable_chunk() = Chunk(i, 0, 16);
      writer->Write(message);
    }
  }
  bool Loaded() { return engine_.GetLayer("own").ok(); }

  v1::LoadLayerResponse response_;
};

TEST_F(UploadRpc, LoadsTheLayer) {
  StartReady();
  const grpc::Status status = Send([](auto* writer) {
    WriteHeader(writer);
    WriteChunks(writer, 4);
  });
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response_.layer().name(), "own");
  EXPECT_EQ(response_.layer().d_model(), 2u);
  EXPECT_EQ(response_.layer().family(), "spec");
  EXPECT_TRUE(Loaded());
  // Once more: taken, unless it replaces.
  EXPECT_EQ(Send([](auto* writer) {
              WriteHeader(writer);
              WriteChunks(writer, 4);
            }).error_code(),
            grpc::StatusCode::ALREADY_EXISTS);
  v1::UploadHeader replacing = Header();
  replacing.set_replace(true);
  EXPECT_TRUE(Send([&replacing](auto* writer) {
                WriteHeader(writer, replacing);
                WriteChunks(writer, 4);
              }).ok());
  EXPECT_EQ(response_.layer().version(), 2u);
}

TEST_F(UploadRpc, WhatIsIncompleteLeavesNoTrace) {
  StartReady();
  EXPECT_EQ(Send([](auto*) {}).error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Send([](auto* writer) {
              WriteHeader(writer);
              WriteChunks(writer, 3);
            }).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Send([](auto* writer) {
              WriteHeader(writer);
              writer->Write(v1::UploadLayerRequest());
            }).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_FALSE(Loaded());
}

TEST_F(UploadRpc, AbortLeavesNoTrace) {
  StartReady();
  grpc::ClientContext context;
  const auto writer = stub_->UploadLayer(&context, &response_);
  WriteHeader(writer.get());
  WriteChunks(writer.get(), 4);
  context.TryCancel();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_.reset();
  EXPECT_FALSE(Loaded());
}

TEST_F(UploadRpc, StalledUploadsTimeOut) {
  ServerOptions options = TestOptions();
  options.upload_timeout = absl::Milliseconds(50);
  StartReady(options);
  grpc::ClientContext context;
  const auto writer = stub_->UploadLayer(&context, &response_);
  WriteHeader(writer.get());
  const grpc::Status status = writer->Finish();  // the server ends it though more could come
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_THAT(status.error_message(), HasSubstr("--upload-timeout"));
}

TEST_F(UploadRpc, UploadsShareTheirBudget) {
  ServerOptions options = TestOptions();
  options.max_upload_bytes = 100;
  StartReady(options);
  grpc::ClientContext context;
  const auto first = stub_->UploadLayer(&context, &response_);
  WriteHeader(first.get());
  first->WaitForInitialMetadata();
  EXPECT_EQ(Send([](auto* writer) { WriteHeader(writer); }).error_code(),
            grpc::StatusCode::RESOURCE_EXHAUSTED);
  WriteChunks(first.get(), 4);
  first->WritesDone();
  EXPECT_TRUE(first->Finish().ok());
}

TEST_F(UploadRpc, PastGraceUploadsUnderWayEndUnavailable) {
  ServerOptions options = TestOptions();
  options.grace = absl::ZeroDuration();
  StartReady(options);
  grpc::ClientContext context;
  const auto writer = stub_->UploadLayer(&context, &response_);
  WriteHeader(writer.get());
  writer->WaitForInitialMetadata();
  server_->BeginDrain();
  server_->Wait();
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(Loaded());
}

TEST_F(UploadRpc, PlanNamesTheTensorsToSend) {
  StartReady();
  v1::PlanUploadRequest request;
  request.set_config_json("{");
  request.set_layer("0");
  v1::PlanUploadResponse response;
  grpc::ClientContext broken_context;
  EXPECT_EQ(stub_->PlanUpload(&broken_context, request, &response).error_code(),
            grpc::StatusCode::DATA_LOSS);
  request.set_config_json(R"({"model_type":"bert","hidden_size":4,"num_attention_heads":2})");
  for (const char* part : {"self.query", "self.key", "self.value", "output.dense"}) {
    v1::StoredTensor* weight = request.add_tensors();
    weight->set_name(std::string("encoder.layer.0.attention.") + part + ".weight");
    weight->set_dtype("F32");
    weight->add_shape(4);
    weight->add_shape(4);
    v1::StoredTensor* bias = request.add_tensors();
    bias->set_name(std::string("encoder.layer.0.attention.") + part + ".bias");
    bias->set_dtype("F32");
    bias->add_shape(4);
  }
  grpc::ClientContext context;
  const grpc::Status status = stub_->PlanUpload(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.tensors_size(), 8);
  request.set_config_json(std::string((1 << 20) + 1, ' '));
  grpc::ClientContext large_context;
  EXPECT_EQ(stub_->PlanUpload(&large_context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace headwise
