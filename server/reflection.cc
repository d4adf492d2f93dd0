// SPDX-License-Identifier: Apache-2.0
#include "server/reflection.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>

#include <set>
#include <utility>

#include "grpc/reflection/v1/reflection.grpc.pb.h"
#include "grpc/reflection/v1alpha/reflection.grpc.pb.h"

namespace headwise {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;

// v1 and v1alpha have the same messages under two names.
struct V1 {
  using Service = grpc::reflection::v1::ServerReflection::CallbackService;
  using Request = grpc::reflection::v1::ServerReflectionRequest;
  using Response = grpc::reflection::v1::ServerReflectionResponse;
};
struct V1Alpha {
  using Service = grpc::reflection::v1alpha::ServerReflection::CallbackService;
  using Request = grpc::reflection::v1alpha::ServerReflectionRequest;
  using Response = grpc::reflection::v1alpha::ServerReflectionResponse;
};

const DescriptorPool& Pool() { return *DescriptorPool::generated_pool(); }

template <typename Response>
void NotFound(const std::string& what, Response* response) {
  response->mutable_error_response()->set_error_code(grpc::StatusCode::NOT_FOUND);
  response->mutable_error_response()->set_error_message("not found: " + what);
}

// `file` and, after it, what it imports, each once.
void CollectFiles(const FileDescriptor* file, std::set<const FileDescriptor*>* seen,
                  std::vector<const FileDescriptor*>* files) {
  if (!seen->insert(file).second) return;
  files->push_back(file);
  for (int i = 0; i < file->dependency_count(); ++i) {
    CollectFiles(file->dependency(i), seen, files);
  }
}

template <typename Response>
void AnswerFile(const FileDescriptor* file, const std::string& asked, Response* response) {
  if (file == nullptr) return NotFound(asked, response);
  std::set<const FileDescriptor*> seen;
  std::vector<const FileDescriptor*> files;
  CollectFiles(file, &seen, &files);
  for (const FileDescriptor* each : files) {
    google::protobuf::FileDescriptorProto proto;
    each->CopyTo(&proto);
    response->mutable_file_descriptor_response()->add_file_descriptor_proto(
        proto.SerializeAsString());
  }
}

template <typename Response>
void AnswerExtension(const std::string& type, int number, Response* response) {
  const Descriptor* message = Pool().FindMessageTypeByName(type);
  const FieldDescriptor* extension =
      message == nullptr ? nullptr : Pool().FindExtensionByNumber(message, number);
  AnswerFile(extension == nullptr ? nullptr : extension->file(), type, response);
}

template <typename Response>
void AnswerExtensionNumbers(const std::string& type, Response* response) {
  const Descriptor* message = Pool().FindMessageTypeByName(type);
  if (message == nullptr) return NotFound(type, response);
  std::vector<const FieldDescriptor*> extensions;
  Pool().FindAllExtensions(message, &extensions);
  auto* answer = response->mutable_all_extension_numbers_response();
  answer->set_base_type_name(type);
  for (const FieldDescriptor* extension : extensions) {
    answer->add_extension_number(extension->number());
  }
}

template <typename Version>
void Answer(const typename Version::Request& request, const std::vector<std::string>& services,
            typename Version::Response* response) {
  using Request = typename Version::Request;
  response->Clear();
  response->set_valid_host(request.host());
  *response->mutable_original_request() = request;
  switch (request.message_request_case()) {
    case Request::kFileByFilename:
      return AnswerFile(Pool().FindFileByName(request.file_by_filename()),
                        request.file_by_filename(), response);
    case Request::kFileContainingSymbol:
      return AnswerFile(Pool().FindFileContainingSymbol(request.file_containing_symbol()),
                        request.file_containing_symbol(), response);
    case Request::kFileContainingExtension:
      return AnswerExtension(request.file_containing_extension().containing_type(),
                             request.file_containing_extension().extension_number(), response);
    case Request::kAllExtensionNumbersOfType:
      return AnswerExtensionNumbers(request.all_extension_numbers_of_type(), response);
    case Request::kListServices:
      for (const std::string& service : services) {
        response->mutable_list_services_response()->add_service()->set_name(service);
      }
      return;
    default:
      response->mutable_error_response()->set_error_code(grpc::StatusCode::INVALID_ARGUMENT);
      response->mutable_error_response()->set_error_message("message_request: must be given");
  }
}

// One stream: a question, its answer, the next question. Deletes itself when gRPC is done with it.
template <typename Version>
class ReflectionCall final
    : public grpc::ServerBidiReactor<typename Version::Request, typename Version::Response> {
 public:
  explicit ReflectionCall(const std::vector<std::string>& services) : services_(services) {
    this->StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::OK);
    Answer<Version>(request_, services_, &response_);
    this->StartWrite(&response_);
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return this->Finish(grpc::Status::CANCELLED);
    this->StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  const std::vector<std::string>& services_;
  typename Version::Request request_;
  typename Version::Response response_;
};

template <typename Version>
class ReflectionService final : public Version::Service {
 public:
  explicit ReflectionService(std::vector<std::string> services) : services_(std::move(services)) {}

  grpc::ServerBidiReactor<typename Version::Request, typename Version::Response>*
  ServerReflectionInfo(grpc::CallbackServerContext*) override {
    return new ReflectionCall<Version>(services_);
  }

 private:
  const std::vector<std::string> services_;
};

}  // namespace

std::vector<std::unique_ptr<grpc::Service>> MakeReflectionServices(
    const std::vector<std::string>& services) {
  std::vector<std::unique_ptr<grpc::Service>> result;
  result.push_back(std::make_unique<ReflectionService<V1>>(services));
  result.push_back(std::make_unique<ReflectionService<V1Alpha>>(services));
  return result;
}

}  // namespace headwise
