// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <iostream>
#include <string>
#include <vector>

#include "client/app.h"

int main(int argc, char** argv) {
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  headwise::client::Environment environment;
  environment.terminal = headwise::client::DescribeTerminal(STDOUT_FILENO);
  environment.in = &std::cin;
  environment.watched = isatty(STDERR_FILENO) == 1;
  return headwise::client::RunHeadwise(words, environment, std::cout, std::cerr);
}
