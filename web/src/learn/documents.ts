// What the server sends of the primer.
export type { ChapterPart, ChapterRow, ChapterView, ExerciseView, GradeDocument, GradeQuestion, LearnContents, PracticeView, PuzzleView, SheetView, SittingQuestion } from "../documents";
