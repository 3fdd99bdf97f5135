//! Ranks parts by meaning: by the likeness of their vectors to the question's vector.

mod embedder;

use std::ops::{ControlFlow, Range};
use std::path::Path;

use riffle_documents::Document;
use riffle_engine::{Engine, KeptText};

use crate::parts::EARLIER_SHARE;
use crate::{AskError, Part};
use embedder::Embedder;

/// Parts of a document whose vectors are kept in one file. An interrupted work loses at most one file.
const PARTS_OF_A_FILE: usize = 128;

/// The embedding model with the vectors of the parts.
pub(crate) struct Meaning {
    embedder: Embedder,
    // [parts, width]; empty before the first question
    vectors: Vec<Vec<f32>>,
    /// The latest question, which also counts for the next one.
    latest: Option<(String, Vec<f32>)>,
}

/// Receives the number of parts with vectors and the number of all parts; may stop the work.
type Observe<'a> = dyn FnMut(usize, usize) -> ControlFlow<()> + 'a;

impl Meaning {
    /// Loads the embedding model beside the language model. It reads no part yet.
    ///
    /// # Errors
    /// [`AskError::NoEmbeddings`] for another kind of model, [`AskError::NoRoom`], and the errors of a load.
    pub(crate) fn load(path: &Path, language: &Engine) -> Result<Self, AskError> {
        Ok(Self {
            embedder: Embedder::load(path, language)?,
            vectors: Vec::new(),
            latest: None,
        })
    }

    /// Bytes that the model and the vectors of `parts` parts take.
    pub(crate) fn bytes(&self, parts: usize) -> Result<u64, AskError> {
        let vectors = parts * self.embedder.width()? * size_of::<f32>();
        Ok(self.embedder.bytes().saturating_add(vectors as u64))
    }

    /// The error of a language model that does not fit beside this one.
    pub(crate) fn without_room(&self, error: AskError) -> AskError {
        self.embedder.without_room(error)
    }

    /// The likeness of each part to the question and, with a smaller weight, to the one before.
    pub(crate) fn scores(
        &mut self,
        (question, earlier): (&str, Option<&str>),
        (documents, parts): (&[Document], &[Part]),
        kept: &mut KeptText,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<f64>, AskError> {
        if self.vectors.is_empty() {
            self.vectors = self.vectors_of(documents, parts, kept, observe)?;
        }
        let (asked, before) = (self.asked(question)?, earlier.map(|earlier| self.asked(earlier)));
        let before = before.transpose()?;
        let scores = self.vectors.iter().map(|vector| {
            let of_earlier = before.as_ref().map_or(0.0, |before| likeness(vector, before));
            likeness(vector, &asked) + EARLIER_SHARE * of_earlier
        });
        let scores = scores.collect();
        self.latest = Some((question.to_owned(), asked));
        Ok(scores)
    }

    /// The vector of a question.
    fn asked(&self, question: &str) -> Result<Vec<f32>, AskError> {
        if let Some((latest, vector)) = &self.latest
            && latest == question
        {
            return Ok(vector.clone());
        }
        let prompt = self.embedder.embedding()?.query_prompt();
        let tokens = self.embedder.tokens(prompt, question)?;
        let vectors = self.embedder.vectors(&[tokens], &mut |_| ControlFlow::Continue(()))?;
        Ok(vectors.into_iter().next().unwrap_or_default())
    }

    /// The vectors of all parts. The model makes the vectors that are not kept yet.
    fn vectors_of(
        &self,
        documents: &[Document],
        parts: &[Part],
        kept: &mut KeptText,
        observe: &mut Observe<'_>,
    ) -> Result<Vec<Vec<f32>>, AskError> {
        let (identity, width) = (self.embedder.identity()?, self.embedder.width()?);
        let prompt = self.embedder.embedding()?.document_prompt();
        let mut vectors = vec![Vec::new(); parts.len()];
        let mut missing = Vec::new();
        for range in files_of(parts) {
            let texts = parts[range.clone()].iter().map(|part| part.text(documents));
            let texts = texts.map(|text| self.embedder.tokens(prompt, text));
            let texts = texts.collect::<Result<Vec<_>, AskError>>()?;
            let name = name_of(&identity, &texts);
            match kept.named(&name).and_then(|bytes| unpacked(&bytes, texts.len(), width)) {
                Some(found) => vectors[range].clone_from_slice(&found),
                None => missing.push((range, texts, name)),
            }
        }
        let count = missing.iter().map(|(range, ..)| range.len()).sum();
        let mut done = 0;
        for (range, texts, name) in missing {
            let made = self.embedder.vectors(&texts, &mut |more| observe(done + more, count))?;
            kept.keep_named(&name, &packed(&made));
            done += made.len();
            vectors[range].clone_from_slice(&made);
        }
        Ok(vectors)
    }
}

/// The parts whose vectors are kept together: at most [`PARTS_OF_A_FILE`] of one document.
fn files_of(parts: &[Part]) -> impl Iterator<Item = Range<usize>> {
    let mut start = 0;
    let of_documents = parts.chunk_by(|part, next| part.document == next.document);
    let files = of_documents.flat_map(|of_document| of_document.chunks(PARTS_OF_A_FILE));
    files.map(move |file| {
        let range = start..start + file.len();
        start = range.end;
        range
    })
}

/// The name of the vectors of some texts: everything that they depend on.
fn name_of(identity: &[u8], texts: &[Vec<u32>]) -> Vec<u8> {
    let mut name = b"vectors of parts 1\n".to_vec();
    name.extend((identity.len() as u64).to_le_bytes());
    name.extend(identity);
    for text in texts {
        name.extend((text.len() as u64).to_le_bytes());
        name.extend(text.iter().flat_map(|token| token.to_le_bytes()));
    }
    name
}

fn packed(vectors: &[Vec<f32>]) -> Vec<u8> {
    vectors.iter().flatten().flat_map(|value| value.to_le_bytes()).collect()
}

/// The vectors in the bytes of a file; `None` if they are not `count` vectors of `width` finite elements.
fn unpacked(bytes: &[u8], count: usize, width: usize) -> Option<Vec<Vec<f32>>> {
    let (values, rest) = bytes.as_chunks();
    let values: Vec<f32> = values.iter().map(|value| f32::from_le_bytes(*value)).collect();
    let is_whole = rest.is_empty() && values.len() == count * width && values.iter().all(|value| value.is_finite());
    is_whole.then(|| values.chunks(width.max(1)).map(<[f32]>::to_vec).collect())
}

/// The cosine of the angle between two vectors of length 1.
fn likeness(one: &[f32], other: &[f32]) -> f64 {
    let products = one
        .iter()
        .zip(other)
        .map(|(one, other)| f64::from(*one) * f64::from(*other));
    products.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(document: usize, start: usize) -> Part {
        Part {
            document,
            start,
            end: start + 1,
        }
    }

    #[test]
    fn files_hold_parts_of_one_document() {
        let parts: Vec<Part> = (0..130)
            .map(|start| part(0, start))
            .chain([part(1, 0), part(2, 0)])
            .collect();
        let files: Vec<Range<usize>> = files_of(&parts).collect();
        assert_eq!(files, [0..128, 128..130, 130..131, 131..132]);
    }

    #[test]
    fn kept_vectors_are_exact_and_others_are_not_taken() {
        let vectors = vec![vec![0.6, -0.8], vec![1.0, 0.0]];
        let bytes = packed(&vectors);
        assert_eq!(unpacked(&bytes, 2, 2), Some(vectors));
        for (count, width) in [(1, 2), (2, 3), (3, 2)] {
            assert_eq!(unpacked(&bytes, count, width), None);
        }
        assert_eq!(unpacked(&bytes[1..], 2, 2), None);
        assert_eq!(unpacked(&f32::NAN.to_le_bytes(), 1, 1), None);
    }

    #[test]
    fn another_model_or_another_division_has_another_name() {
        let texts = |texts: &[&[u32]]| texts.iter().map(|text| text.to_vec()).collect::<Vec<_>>();
        let name = name_of(b"one", &texts(&[&[1, 2], &[3]]));
        assert_eq!(name, name_of(b"one", &texts(&[&[1, 2], &[3]])));
        assert_ne!(name, name_of(b"two", &texts(&[&[1, 2], &[3]])));
        assert_ne!(name, name_of(b"one", &texts(&[&[1], &[2, 3]])));
    }
}
