#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""client/python/capture.py end to end: capture_test.py TREE BIN.

Tiny random models of transformers (an encoder, a grouped decoder, two encoder-decoders) are saved, captured on texts,
loaded by the built server from their own checkpoints, and run on what was captured: the layers' outputs must be the
models' own.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import numpy as np
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (BartConfig, BartModel, BertConfig, BertModel, LlamaConfig, LlamaModel, PreTrainedTokenizerFast,
                          T5Config, T5Model)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from running_server import RunningServer  # noqa: E402  pylint: disable=wrong-import-position

TREE, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
TEXTS = "the cat sat\na dog ran over the hill and back\n\nwords that the cat and the dog never heard\nthe\n"
VOCABULARY = ["[UNK]", "[PAD]", *sorted({word for word in TEXTS.split()})]


def tokenizer():
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", pad_token="[PAD]")


class Captures(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.manual_seed(7)
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        (cls.folder / "texts.txt").write_text(TEXTS, encoding="utf-8")
        cls.address = cls.enterClassContext(RunningServer(BIN, "--repository", cls.folder)).address

    def run_program(self, *words):
        done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def headwise(self, *words):
        return json.loads(self.run_program(BIN / "headwise", "--server", self.address, "--json", *words))

    def capture(self, name, model, layers, *more):
        model.save_pretrained(self.folder / name)
        tokenizer().save_pretrained(self.folder / name)
        out = self.folder / f"{name}.safetensors"
        self.run_program(sys.executable, TREE / "client/python/capture.py", self.folder / name,
                         self.folder / "texts.txt", out, "--layers", layers, "--outputs", *more)
        return out

    def check(self, name, captured, layer, tensor, prefix="", memory=False):
        """The served layer on what entered the model's gives what left the model's."""
        self.headwise("load", f"{name}-{layer}", "--checkpoint", name, "--layer", layer)
        words = ["--input", f"{captured}:{tensor}.x", "--lengths-from", f"{captured}:{prefix}lengths"]
        if memory:
            words += ["--memory", f"{captured}:{tensor}.memory", "--memory-lengths-from", f"{captured}:encoder.lengths"]
        else:
            words += ["--positions", f"{captured}:{prefix}positions"]
        out = self.folder / "y.safetensors"
        self.headwise("forward", f"{name}-{layer}", *words, "--output", out)
        y, expected = load_file(out)["y"], load_file(captured)[f"{tensor}.y"]
        self.assertEqual(y.shape, expected.shape)
        np.testing.assert_allclose(y, expected, atol=2e-5 * np.abs(expected).max(), rtol=0)
        return words

    def test_encoder(self):
        config = BertConfig(vocab_size=len(VOCABULARY), hidden_size=48, num_hidden_layers=3, num_attention_heads=4,
                            intermediate_size=64, max_position_embeddings=32)
        captured = self.capture("bert", BertModel(config), "0,2")
        tensors = load_file(captured)
        self.assertEqual(tensors["lengths"].tolist(), [3, 8, 9, 1])
        self.assertEqual(tensors["token_ids"].dtype, np.int64)
        self.assertEqual(tensors["token_ids"].shape, (21,))
        self.assertEqual(tensors["positions"].tolist()[:5], [0, 1, 2, 0, 1])
        self.assertEqual(tensors["layer0.x"].dtype, np.float32)
        self.check("bert", captured, "0", "layer0")
        words = self.check("bert", captured, "2", "layer2")
        answer = self.headwise("analyze", "bert-2", *words, "--token-ids", f"{captured}:token_ids",
                               "--permutations", "19")
        self.assertIn("value", answer["heads"][0]["induction_score"])

    def test_grouped_decoder(self):
        config = LlamaConfig(vocab_size=len(VOCABULARY), hidden_size=64, num_hidden_layers=2, num_attention_heads=8,
                             num_key_value_heads=2, intermediate_size=96, max_position_embeddings=64)
        captured = self.capture("llama", LlamaModel(config), "0,1")
        for layer in ("0", "1"):
            self.check("llama", captured, layer, f"layer{layer}")

    def encoder_decoder(self, name, model):
        captured = self.capture(name, model, "encoder.1,decoder.0,cross.1")
        self.check(name, captured, "encoder.1", "encoder.1", "encoder.")
        self.check(name, captured, "decoder.0", "decoder.0", "decoder.")
        self.check(name, captured, "cross.1", "cross.1", "decoder.", memory=True)

    def test_encoder_decoder(self):
        self.encoder_decoder("bart", BartModel(BartConfig(
            vocab_size=len(VOCABULARY), d_model=48, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
            decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64, max_position_embeddings=32,
            pad_token_id=1, bos_token_id=0, eos_token_id=2, decoder_start_token_id=2, forced_eos_token_id=None)))

    def test_encoder_decoder_with_position_buckets(self):
        self.encoder_decoder("t5", T5Model(T5Config(
            vocab_size=len(VOCABULARY), d_model=48, d_kv=12, d_ff=64, num_layers=2, num_heads=4, pad_token_id=1,
            decoder_start_token_id=1, eos_token_id=0)))

    def test_texts_are_cut(self):
        config = BertConfig(vocab_size=len(VOCABULARY), hidden_size=48, num_hidden_layers=1, num_attention_heads=4,
                            intermediate_size=64, max_position_embeddings=32)
        captured = self.capture("cut", BertModel(config), "0", "--max-tokens", "4")
        self.assertEqual(load_file(captured)["lengths"].tolist(), [3, 4, 4, 1])

    def test_unknown_layers_are_refused(self):
        config = BertConfig(vocab_size=len(VOCABULARY), hidden_size=48, num_hidden_layers=1, num_attention_heads=4,
                            intermediate_size=64)
        BertModel(config).save_pretrained(self.folder / "small")
        tokenizer().save_pretrained(self.folder / "small")
        done = subprocess.run([sys.executable, TREE / "client/python/capture.py", self.folder / "small",
                               self.folder / "texts.txt", self.folder / "none", "--layers", "4"],
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn("layers: must be some of 0; was 4", done.stderr)


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    unittest.main(argv=[sys.argv[0], "-v"])
