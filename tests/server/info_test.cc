// SPDX-License-Identifier: Apache-2.0
// ServerInfo, reflection, and the methods that are not carried out.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"
#include "tests/server/server_fixture.h"

namespace headwise {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class InfoRpc : public ServerFixture {};

TEST_F(InfoRpc, ServerInfoNamesLimitsByTheirFlags) {
  StartReady();
  grpc::ClientContext context;
  v1::ServerInfoResponse response;
  ASSERT_TRUE(stub_->ServerInfo(&context, {}, &response).ok());
  EXPECT_EQ(response.threads(), 2u);
  EXPECT_EQ(response.threads_source(), "the test");
  EXPECT_THAT(response.kernels(), ElementsAre("PRIMITIVE"));
  EXPECT_FALSE(response.version().empty());
  EXPECT_FALSE(response.isa().empty());
  EXPECT_FALSE(response.onednn_version().empty());
  std::vector<std::string> flags;
  for (const v1::Limit& limit : response.limits()) flags.push_back(limit.flag());
  EXPECT_THAT(flags, Contains("--max-message-bytes"));
}

template <typename Request, typename Response, typename Stub>
std::vector<Response> Ask(Stub* stub, const std::vector<Request>& questions) {
  grpc::ClientContext context;
  const auto stream = stub->ServerReflectionInfo(&context);
  std::vector<Response> answers;
  for (const Request& question : questions) {
    Response answer;
    stream->Write(question);
    if (stream->Read(&answer)) answers.push_back(answer);
  }
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
  return answers;
}

TEST_F(InfoRpc, ReflectionDescribesTheService) {
  StartReady();
  namespace reflection = grpc::reflection::v1;
  const auto stub =
      reflection::ServerReflection::NewStub(server_->grpc_server()->InProcessChannel({}));
  std::vector<reflection::ServerReflectionRequest> questions(5);
  questions[0].set_list_services("");
  questions[1].set_file_containing_symbol("headwise.v1.Headwise.Forward");
  questions[2].set_file_by_filename("headwise/v1/tensor.proto");
  questions[3].set_file_containing_symbol("no.such.Symbol");
  questions[4].set_all_extension_numbers_of_type("headwise.v1.Tensor");
  const auto answers =
      Ask<reflection::ServerReflectionRequest, reflection::ServerReflectionResponse>(stub.get(),
                                                                                     questions);
  ASSERT_EQ(answers.size(), 5u);
  std::vector<std::string> services;
  for (const auto& service : answers[0].list_services_response().service()) {
    services.push_back(service.name());
  }
  EXPECT_THAT(services, Contains("headwise.v1.Headwise"));
  EXPECT_THAT(services, Contains("grpc.health.v1.Health"));
  EXPECT_THAT(services, Contains("inference.GRPCInferenceService"));
  EXPECT_EQ(answers[1].file_descriptor_response().file_descriptor_proto_size(), 5);
  google::protobuf::FileDescriptorProto file;
  ASSERT_TRUE(file.ParseFromString(answers[2].file_descriptor_response().file_descriptor_proto(0)));
  EXPECT_EQ(file.package(), "headwise.v1");
  EXPECT_EQ(answers[3].error_response().error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(answers[4].all_extension_numbers_response().base_type_name(), "headwise.v1.Tensor");
}

TEST_F(InfoRpc, ReflectionCanBeTurnedOff) {
  ServerOptions options = TestOptions();
  options.reflection = false;
  StartReady(options);
  namespace reflection = grpc::reflection::v1alpha;
  const auto stub =
      reflection::ServerReflection::NewStub(server_->grpc_server()->InProcessChannel({}));
  grpc::ClientContext context;
  EXPECT_EQ(stub->ServerReflectionInfo(&context)->Finish().error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(InfoRpc, OldReflectionClientsAreServedToo) {
  StartReady();
  namespace reflection = grpc::reflection::v1alpha;
  const auto stub =
      reflection::ServerReflection::NewStub(server_->grpc_server()->InProcessChannel({}));
  std::vector<reflection::ServerReflectionRequest> questions(1);
  questions[0].set_list_services("");
  const auto answers =
      Ask<reflection::ServerReflectionRequest, reflection::ServerReflectionResponse>(stub.get(),
                                                                                     questions);
  ASSERT_EQ(answers.size(), 1u);
  EXPECT_EQ(answers[0].list_services_response().service_size(), 5);
}

}  // namespace
}  // namespace headwise
