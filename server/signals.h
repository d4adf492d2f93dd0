// SPDX-License-Identifier: Apache-2.0
#ifndef HEADWISE_SERVER_SIGNALS_H_
#define HEADWISE_SERVER_SIGNALS_H_

#include <atomic>
#include <functional>
#include <thread>

namespace headwise {

// Blocks the signals below for this thread and those that it will make. Call it before the first.
void BlockSignals();

// What to do about signals, on a thread of its own, where anything may be done that a signal
// handler may not.
struct SignalActions {
  std::function<void(int count)> stop;       // SIGTERM and SIGINT: 1 at the first, 2 at the second…
  std::function<void(bool more)> log_level;  // SIGUSR1: more, SIGUSR2: less
};

class SignalThread {
 public:
  explicit SignalThread(SignalActions actions);
  ~SignalThread();
  SignalThread(const SignalThread&) = delete;
  SignalThread& operator=(const SignalThread&) = delete;

 private:
  void Run();

  const SignalActions actions_;
  std::atomic<bool> stop_{false};
  std::thread thread_;  // last: starts when the rest is there
};

}  // namespace headwise

#endif  // HEADWISE_SERVER_SIGNALS_H_
