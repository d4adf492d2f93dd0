// SPDX-License-Identifier: Apache-2.0
// Lets a unary call give its request's memory back before it answers.
#ifndef HEADWISE_SERVER_FREEING_ALLOCATOR_H_
#define HEADWISE_SERVER_FREEING_ALLOCATOR_H_

#include <grpcpp/support/message_allocator.h>

#include <memory>

namespace headwise {

// gRPC keeps a request until its call has ended. A large one's bytes are wanted before: the answer
// is serialised in as much memory again. With this allocator a handler that is done with its
// request says so by context->GetRpcAllocatorState()->FreeRequest(). Thread-safe.
template <typename Request, typename Response>
class FreeingAllocator : public grpc::MessageAllocator<Request, Response> {
 public:
  using Holder = grpc::MessageHolder<Request, Response>;

  Holder* AllocateMessages() override { return new Messages; }

 private:
  // Released by gRPC when the call has ended.
  class Messages final : public Holder {
   public:
    Messages() {
      this->set_request(request_.get());
      this->set_response(&response_);
    }
    void FreeRequest() override {
      this->set_request(nullptr);
      request_.reset();
    }
    void Release() override { delete this; }

   private:
    std::unique_ptr<Request> request_ = std::make_unique<Request>();
    Response response_;
  };
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_FREEING_ALLOCATOR_H_
